"""MLP slot: input matrix, activation (gated or not), output matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.blocks.parts import BlockPart, finite, one_of
from hessblocks.blocks.weights import Dense, Weight


@dataclass(frozen=True, kw_only=True)
class MLP(BlockPart, kind="mlp"):
    """MLP: activation(x W_in) W_out; gated: (activation(x W_gate) · x W_in) W_out.

    Source of relu-squared: So et al. (2021), Primer, arXiv 2109.08668, section 4.1.
    """

    activation: str = one_of("relu", "relu-squared", "leaky-relu", "gelu", "gelu-tanh", "silu")
    """relu, relu-squared (max(x, 0)²), leaky-relu, gelu, gelu-tanh (GPT-2's) or silu."""
    negative_slope: float = finite(0.01)
    """Slope of leaky-relu below zero."""
    gated: bool = False
    """Whether a third matrix gates the hidden layer: silu gives SwiGLU, gelu gives GEGLU."""
    input: Weight = Dense()
    """W_in, and W_gate if gated."""
    output: Weight = Dense()
    """W_out."""

    def build(self, width: int, hidden: int) -> FeedForward:
        """Build the module, width → hidden → width."""
        return FeedForward(self, width, hidden)


class FeedForward(nn.Module):
    """MLP module; see `MLP`."""

    def __init__(self, part: MLP, width: int, hidden: int) -> None:
        super().__init__()
        self.input = part.input.build(width, hidden)
        self.gate = part.input.build(width, hidden) if part.gated else None
        self.output = part.output.build(hidden, width)
        self._activation = _activation(part)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        """Apply to (..., width)."""
        if self.gate is None:
            hidden = self._activation(self.input(x))
        else:
            hidden = self._activation(self.gate(x)) * self.input(x)
        projected: Tensor = self.output(hidden)
        return projected


def _activation(part: MLP) -> Callable[[Tensor], Tensor]:
    if part.activation == "leaky-relu":
        return nn.LeakyReLU(part.negative_slope)
    plain: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "relu-squared": _relu_squared,
        "gelu": F.gelu,
        "gelu-tanh": partial(F.gelu, approximate="tanh"),
        "silu": F.silu,
    }
    return plain[part.activation]


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()
