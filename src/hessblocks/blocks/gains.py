"""Trainable scalars: the gains of shaped attention and of a sub-block's branch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hessblocks.blocks.parts import Part, check_finite


@dataclass(frozen=True, kw_only=True)
class Shaping(Part, kind="shaping"):
    """Shaped attention αI + βA − γC, one α, β, γ a head (Noci et al., 2023; He & Hofmann, eq. 5)."""

    alpha: float = 1.0
    """Initial gain of the identity."""
    beta: float = 1.0
    """Initial gain of the attention matrix A."""
    gamma: float = 1.0
    """Initial gain of the centre C, the value of A at zero scores."""
    trainable: bool = True
    """Whether the gains are trained."""

    def __post_init__(self) -> None:
        """Check the gains."""
        check_finite(self, "alpha", "beta", "gamma")

    def build(self, heads: int) -> ShapedGains:
        """A module holding α, β, γ for each head."""
        return ShapedGains(self, heads)


class ShapedGains(nn.Module):
    """α, β, γ, each (heads,)."""

    def __init__(self, part: Shaping, heads: int) -> None:
        super().__init__()
        self._part = part
        for name in ("alpha", "beta", "gamma"):
            setattr(self, name, nn.Parameter(torch.empty(heads), requires_grad=part.trainable))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the configured values."""
        for name in ("alpha", "beta", "gamma"):
            nn.init.constant_(getattr(self, name), getattr(self._part, name))

    def per_head(self) -> tuple[Tensor, Tensor, Tensor]:
        """α, β, γ shaped (heads, 1, 1), to multiply (batch, heads, tokens, width)."""
        return tuple(getattr(self, name)[:, None, None] for name in ("alpha", "beta", "gamma"))


@dataclass(frozen=True, kw_only=True)
class Branch(Part, kind="branch"):
    """One residual sum: skip · x + gain · f(x)."""

    skip: float = 1.0
    """Gain of the skip (the papers' α); 0 removes it."""
    gain: float = 1.0
    """Initial gain of the branch (the papers' β), before depth scaling."""
    trainable: bool = False
    """Whether the branch gain is trained."""
    over_sqrt_depth: bool = False
    """Whether the branch gain is divided by the square root of the number of layers."""

    def __post_init__(self) -> None:
        """Check the gains."""
        check_finite(self, "skip", "gain")

    def initial_gain(self, depth: int) -> float:
        """The branch gain at initialisation in a model of `depth` layers."""
        return self.gain / math.sqrt(depth) if self.over_sqrt_depth else self.gain

    def build(self, depth: int) -> ResidualSum:
        """A module that adds skip and branch."""
        return ResidualSum(self, depth)


class ResidualSum(nn.Module):
    """skip · x + gain · branch; a skip of 0 and a fixed gain of 1 cost nothing."""

    def __init__(self, part: Branch, depth: int) -> None:
        super().__init__()
        self.skip = part.skip
        self.initial_gain = part.initial_gain(depth)
        self.gain: Tensor | float = self.initial_gain
        if part.trainable:
            self.gain = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the configured gain."""
        if isinstance(self.gain, Tensor):
            nn.init.constant_(self.gain, self.initial_gain)

    def forward(self, branch: Tensor, x: Tensor | None = None) -> Tensor:
        """Add the scaled branch to the scaled skip; `x` may be left out where there is no skip."""
        scaled = branch if isinstance(self.gain, float) and self.gain == 1.0 else self.gain * branch
        if x is None or self.skip == 0.0:
            return scaled
        return scaled + (x if self.skip == 1.0 else self.skip * x)
