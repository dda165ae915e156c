"""Derivatives of norms in closed form against automatic differentiation of torch's own."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import jacrev, vmap
from torch.nn import functional as F  # noqa: N812

from hessblocks.errors import ArgumentError
from hessblocks.theory import norm_derivatives

WIDTH = 5
EPS = [0.0, 1e-5, 0.3]


def layer_norm(eps: float) -> Callable[[Tensor], Tensor]:
    return lambda v: F.layer_norm(v, (WIDTH,), eps=eps)


def rms_norm(eps: float) -> Callable[[Tensor], Tensor]:
    return lambda v: v / (v.square().mean() + eps).sqrt()


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("rows", [(), (3,), (2, 3)])
def test_derivatives_equal_autodiff(eps: float, centred: bool, rows: tuple[int, ...]) -> None:
    x = torch.randn(*rows, WIDTH, dtype=torch.float64)
    u = torch.randn_like(x)
    found = norm_derivatives(x, eps=eps, centred=centred)
    norm = (layer_norm if centred else rms_norm)(eps)

    def each(function: Callable[[Tensor], Tensor], last: int) -> Tensor:
        flat = torch.stack([function(v) for v in x.reshape(-1, WIDTH)])
        return flat.view(*rows, *(WIDTH,) * last)

    second = each(jacrev(jacrev(norm)), 3)
    torch.testing.assert_close(found.output, each(norm, 1), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.first, each(jacrev(norm), 2), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.second, second, rtol=1e-11, atol=1e-12)
    along = torch.einsum("...a,...abc->...bc", u, second)
    torch.testing.assert_close(found.second_along(u), along, rtol=1e-11, atol=1e-12)


def test_an_input_ten_times_as_large_has_a_tenth_and_a_hundredth_of_the_derivatives() -> None:
    x = torch.randn(4, WIDTH, dtype=torch.float64)
    small, large = norm_derivatives(x, eps=0), norm_derivatives(10 * x, eps=0)
    torch.testing.assert_close(small.first, 10 * large.first)
    torch.testing.assert_close(small.second, 100 * large.second)


@pytest.mark.parametrize(
    ("x", "eps", "words"),
    [
        (torch.ones(3, dtype=torch.long), 1e-5, "x: expected floating-point vectors"),
        (torch.randn(3), -1.0, "eps: expected a number of at least 0"),
        (torch.randn(3), float("nan"), "eps: expected a number of at least 0"),
        (torch.ones(2, 3), 0.0, "the norm of a constant vector is undefined"),
    ],
)
def test_bad_input_is_refused(x: Tensor, eps: float, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        norm_derivatives(x, eps=eps)


def test_derivatives_under_vmap_are_those_of_each_row() -> None:
    x = torch.randn(3, WIDTH, dtype=torch.float64)
    whole = norm_derivatives(x).first
    assert torch.equal(whole, torch.stack([norm_derivatives(v).first for v in x]))
    torch.testing.assert_close(whole, vmap(jacrev(layer_norm(1e-5)))(x))
