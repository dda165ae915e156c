"""The curvature of the cross-entropy seen from the hidden state, against autodiff and in bad light."""

import pytest
import torch
from torch import Tensor
from torch.func import hessian, vmap
from torch.nn import functional as F  # noqa: N812

from hessblocks.curvature.exact.unembedding import FEW, Unembedding, summed_squares

CLASSES, WIDTH = 23, 5
LIMIT = 1 << 20


def made(tokens: int, *, scale: float = 1.0, bias: bool = False) -> tuple[Unembedding, Tensor]:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(CLASSES, WIDTH, generator=random, dtype=torch.float64)
    added = torch.randn(CLASSES, generator=random, dtype=torch.float64) if bias else None
    hidden = scale * torch.randn(tokens, WIDTH, generator=random, dtype=torch.float64)
    return Unembedding(weight=weight, bias=added), hidden


def single(unembedding: Unembedding) -> Unembedding:
    return Unembedding(weight=unembedding.weight.float())


@pytest.mark.parametrize("tokens", [1, FEW, FEW + 1, 40])
@pytest.mark.parametrize("rows", [7, 2050])
def test_sums_of_squares_are_those_of_einsum(tokens: int, rows: int) -> None:
    weights = torch.randn(tokens, rows, dtype=torch.float64)
    vectors = torch.randn(rows, 10, dtype=torch.float64)
    expected = torch.einsum("nm,ma,mb->nab", weights, vectors, vectors)
    torch.testing.assert_close(summed_squares(weights, vectors), expected, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("tokens", [3, FEW + 4])
@pytest.mark.parametrize("bias", [False, True])
def test_gradient_and_curvature_are_those_of_autodiff(tokens: int, bias: bool) -> None:
    unembedding, hidden = made(tokens, bias=bias)
    labels, weights = torch.arange(tokens) % CLASSES, torch.rand(tokens, dtype=torch.float64)

    def loss(h: Tensor, label: Tensor, weight: Tensor) -> Tensor:
        return weight * F.cross_entropy(unembedding.logits(h), label)

    expected = vmap(hessian(loss))(hidden, labels, weights)
    found = unembedding.curvature(hidden, weights)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    slope = vmap(torch.func.grad(loss))(hidden, labels, weights)
    for limit in (1, LIMIT):
        found = unembedding.gradient(hidden, labels, weights, limit)
        torch.testing.assert_close(found, slope, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("tokens", [3, FEW + 4])
def test_almost_certain_tokens_keep_their_digits(tokens: int) -> None:
    """Nearly all on one class: the two halves of Λ agree to as many digits and cancel."""
    exact, hidden = made(tokens, scale=40.0)
    labels = exact.logits(hidden).argmax(-1)
    weights = torch.ones(tokens, dtype=torch.float64)
    rest = 1 - exact.logits(hidden).softmax(-1).amax(-1)
    assert (rest < 1e-5).any()
    for found, expected in (
        (
            single(exact).curvature(hidden.float(), weights.float()),
            exact.curvature(hidden, weights),
        ),
        (
            single(exact).gradient(hidden.float(), labels, weights.float(), LIMIT),
            exact.gradient(hidden, labels, weights, LIMIT),
        ),
    ):
        error = (found.double() - expected).flatten(1).norm(dim=1)
        size = expected.flatten(1).norm(dim=1)
        seen = size > 1e-25  # the smallest number of single precision is 1e-38
        assert (error < 1e-3 * size)[seen].all()


def test_a_mean_that_all_classes_share_costs_no_digits() -> None:
    exact, hidden = made(FEW + 4)
    weights = torch.ones(len(hidden), dtype=torch.float64)
    shifted = Unembedding(weight=exact.weight.float() + 100)
    found = shifted.curvature(hidden.float(), weights.float()).double()
    expected = Unembedding(weight=shifted.weight.double()).curvature(
        hidden.float().double(), weights
    )
    assert ((found - expected).norm() / expected.norm()) < 1e-3
