"""The curvature of the cross-entropy seen from the hidden state, against autodiff and in bad
light."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian, vmap
from torch.nn import functional as F  # noqa: N812

from hessblocks.curvature.exact.unembedding import FEW, SeenLoss, summed_squares

CLASSES, WIDTH = 23, 5
LIMIT = 1 << 20


def made(tokens: int, *, scale: float = 1.0, bias: bool = False) -> tuple[nn.Linear, Tensor]:
    random = torch.Generator().manual_seed(0)
    head = nn.Linear(WIDTH, CLASSES, bias=bias, dtype=torch.float64).requires_grad_(False)
    head.weight.copy_(torch.randn(CLASSES, WIDTH, generator=random, dtype=torch.float64))
    if bias:
        head.bias.copy_(torch.randn(CLASSES, generator=random, dtype=torch.float64))
    return head, scale * torch.randn(tokens, WIDTH, generator=random, dtype=torch.float64)


def with_weight(weight: Tensor) -> nn.Linear:
    head = nn.Linear(WIDTH, CLASSES, bias=False, dtype=weight.dtype).requires_grad_(False)
    head.weight.copy_(weight)
    return head


def seen(head: nn.Linear, hidden: Tensor, labels: Tensor, limit: int = LIMIT) -> SeenLoss:
    """The loss with a weight of 1 for each token."""
    return SeenLoss(head, hidden, labels, hidden.new_ones(len(hidden)), limit)


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
    head, hidden = made(tokens, bias=bias)
    labels, weights = torch.arange(tokens) % CLASSES, torch.rand(tokens, dtype=torch.float64)

    def loss(h: Tensor, label: Tensor, weight: Tensor) -> Tensor:
        return weight * F.cross_entropy(head(h), label)

    expected = vmap(hessian(loss))(hidden, labels, weights)
    slope = vmap(torch.func.grad(loss))(hidden, labels, weights)
    for limit in (1, LIMIT):
        found = SeenLoss(head, hidden, labels, weights, limit)
        torch.testing.assert_close(found.curvature(), expected, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(found.gradient, slope, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("tokens", [3, FEW + 4])
def test_almost_certain_tokens_keep_their_digits(tokens: int) -> None:
    """Nearly all on one class: the two halves of Λ agree to as many digits and cancel."""
    head, hidden = made(tokens, scale=40.0)
    labels = head(hidden).argmax(-1)
    rest = 1 - head(hidden).softmax(-1).amax(-1)
    assert (rest < 1e-5).any()
    exact = seen(head, hidden, labels)
    single = seen(with_weight(head.weight.float()), hidden.float(), labels)
    for found, expected in (
        (single.curvature(), exact.curvature()),
        (single.gradient, exact.gradient),
    ):
        error = (found.double() - expected).flatten(1).norm(dim=1)
        size = expected.flatten(1).norm(dim=1)
        kept = size > 1e-25  # the smallest number of single precision is 1e-38
        assert (error < 1e-3 * size)[kept].all()


def test_a_mean_that_all_classes_share_costs_no_digits() -> None:
    head, hidden = made(FEW + 4)
    labels = torch.zeros(len(hidden), dtype=torch.long)
    shifted = with_weight(head.weight.float() + 100)
    found = seen(shifted, hidden.float(), labels).curvature().double()
    wide = seen(with_weight(shifted.weight.double()), hidden.float().double(), labels)
    assert ((found - wide.curvature()).norm() / wide.curvature().norm()) < 1e-3
