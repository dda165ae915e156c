"""What autograd records tells whether a function is piecewise linear; the dense Hessian is the witness."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hessblocks.curvature.exact.piecewise_linear import piecewise_linear

FIRST, SECOND = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0)).double()


class Add(torch.autograd.Function):
    """A cube under the name of an operation that is linear."""

    @staticmethod
    def forward(ctx: object, a: Tensor) -> Tensor:
        return a**3

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return g


STRAIGHT: dict[str, Callable[[Tensor], Tensor]] = {
    "mlp": lambda a: (a + F.leaky_relu(a @ FIRST) @ SECOND)[1:] * 2,
    "linear layers": lambda a: F.linear(F.relu(F.linear(a, FIRST, SECOND[0])), SECOND),
    "two ways": lambda a: torch.cat([a.relu(), -a])[2:6] - 3 * a,
}
CURVED: dict[str, Callable[[Tensor], Tensor]] = {
    "square": lambda a: a * a,
    "product of two ways": lambda a: a.relu() * (a @ FIRST),
    "weights that depend": lambda a: torch.outer(a, a) @ a,
    "inverse": lambda a: 1 / (3 + a.abs()),
    "constant over": lambda a: FIRST[0] / (3 + a.relu()),
    "gelu": lambda a: F.gelu(a @ FIRST),
    "layer norm": lambda a: F.layer_norm(a, (4,)),
    "one curved way of two": lambda a: a + (a @ FIRST).tanh(),
    "false name": Add.apply,
}


@pytest.mark.parametrize("function", STRAIGHT.values(), ids=STRAIGHT)
def test_piecewise_linear_functions_are_known(function: Callable[[Tensor], Tensor]) -> None:
    point = FIRST[3]
    assert piecewise_linear(function, point)
    assert not torch.func.hessian(function)(point).any()


@pytest.mark.parametrize("function", CURVED.values(), ids=CURVED)
def test_curved_functions_are_never_taken_for_straight(
    function: Callable[[Tensor], Tensor],
) -> None:
    assert not piecewise_linear(function, FIRST[3])


def test_no_gradient_tells_nothing() -> None:
    assert not piecewise_linear(lambda a: FIRST[0], FIRST[3])
