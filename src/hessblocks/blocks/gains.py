"""Trainable scalars: gains of shaped attention and of residual branches, scores of sinks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.blocks.norms import NoNorm, Norm
from hessblocks.blocks.parts import BlockPart, finite
from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Shaping(BlockPart, kind="shaping"):
    """Shaped attention αI + βA − γC, α, β, γ per head (Noci et al., 2023; He & Hofmann, eq. 5).

    Without the centre C: Value-SkipInit, αI + βA (He et al., 2023).
    """

    alpha: float = finite(1.0)
    """Initial gain of the identity."""
    beta: float = finite(1.0)
    """Initial gain of the attention matrix A."""
    gamma: float = finite(1.0)
    """Initial gain of the centre C, which is A at zero scores."""
    centred: bool = True
    """Whether γC is subtracted; if not, γ is fixed at 0."""
    trainable: bool = True
    """Whether the gains are trained."""

    def __post_init__(self) -> None:
        """Check the gains."""
        super().__post_init__()
        if self.beta == 0 and not self.trainable:
            raise ArgumentError(
                "shaping: beta=0 and trainable=False exclude each other: queries and keys would "
                "never have an effect; train the gains or give beta another value"
            )

    def build(self, heads: int) -> ShapedGains:
        """Build a module with α, β, γ per head."""
        return ShapedGains(self, heads)


class ShapedGains(nn.Module):
    """Gains α, β, γ of shaped attention, each (heads,)."""

    def __init__(self, part: Shaping, heads: int) -> None:
        super().__init__()
        self._part = part
        self.centred = part.centred
        self.alpha = nn.Parameter(torch.empty(heads), requires_grad=part.trainable)
        self.beta = nn.Parameter(torch.empty(heads), requires_grad=part.trainable)
        self.gamma = nn.Parameter(torch.empty(heads), requires_grad=part.trainable and part.centred)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the configured gains."""
        nn.init.constant_(self.alpha, self._part.alpha)
        nn.init.constant_(self.beta, self._part.beta)
        nn.init.constant_(self.gamma, self._part.gamma if self.centred else 0.0)

    def per_head(self) -> Float[Tensor, "3 heads 1 1"]:
        """Stack α, β, γ; each broadcasts against (batch, heads, tokens, width)."""
        return torch.stack((self.alpha, self.beta, self.gamma))[:, :, None, None]


@dataclass(frozen=True, kw_only=True)
class Sink(BlockPart, kind="sink"):
    """Attention sink: an additional key per head, with a trained score and value zero.

    A token can thus attend to nothing. Source: GPT-OSS (OpenAI, 2025); Xiao et al. (2023).
    """

    score: float = finite(0.0)
    """Initial score of the sink; softcap and temperature do not change it."""

    def build(self, heads: int) -> SinkScores:
        """Build a module with one score per head."""
        return SinkScores(self, heads)


class SinkScores(nn.Module):
    """Scores of attention sinks, (heads,)."""

    def __init__(self, part: Sink, heads: int) -> None:
        super().__init__()
        self._part = part
        self.scores = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the configured score."""
        nn.init.constant_(self.scores, self._part.score)


@dataclass(frozen=True, kw_only=True)
class Branch(BlockPart, kind="branch"):
    """Residual branch skip · x + gain · norm(f(x)); by default norm is the identity.

    Source of the norm: Gemma 2 (Gemma Team, 2024), OLMo 2 (OLMo Team, 2024, section 3.3), Peri-LN
    (Kim et al., 2025, arXiv 2502.02732).
    """

    skip: float = finite(1.0)
    """Initial gain of the skip connection (the papers' α); 0 removes it unless it is trained."""
    trainable_skip: bool = False
    """Whether the gain of the skip connection is trained."""
    gain: float = finite(1.0)
    """Initial gain of the branch (the papers' β), before depth scaling."""
    trainable: bool = False
    """Whether the branch gain is trained."""
    over_sqrt_depth: bool = False
    """Whether the branch gain is divided by the square root of the number of layers."""
    norm: Norm = NoNorm()
    """Norm of the sub-block's output f(x)."""

    def __post_init__(self) -> None:
        """Check the gains."""
        super().__post_init__()
        if self.gain == 0 and not self.trainable:
            raise ArgumentError(
                "branch: gain=0 and trainable=False exclude each other: the sub-block would never "
                "have an effect; train the gain or give it another value"
            )

    @property
    def has_skip(self) -> bool:
        """Whether there is a skip connection: its gain is trained or not 0."""
        return self.trainable_skip or self.skip != 0

    def initial_gain(self, depth: int) -> float:
        """Compute the branch gain at initialisation in a model of `depth` layers."""
        return self.gain / math.sqrt(depth) if self.over_sqrt_depth else self.gain

    def build(self, width: int, depth: int) -> ResidualSum:
        """Build a module that adds skip and branch."""
        return ResidualSum(self, width, depth)


class ResidualSum(nn.Module):
    """Residual sum skip · x + gain · norm(branch); a fixed skip 0 or gain 1 costs nothing."""

    def __init__(self, part: Branch, width: int, depth: int) -> None:
        super().__init__()
        self._initial = {"skip": part.skip, "gain": part.initial_gain(depth)}
        self.skip = scalar(self._initial["skip"], part.trainable_skip)
        self.gain = scalar(self._initial["gain"], part.trainable)
        self.norm = part.norm.build(width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the configured gains."""
        # fixed gains are plain numbers, not parameters
        for name, parameter in self.named_parameters(recurse=False):
            nn.init.constant_(parameter, self._initial[name])

    def forward(
        self, branch: Float[Tensor, "*shape"], x: Float[Tensor, "*shape"] | None = None
    ) -> Float[Tensor, "*shape"]:
        """Compute skip · x + gain · norm(branch); `x` may be None if there is no skip."""
        if x is None or (isinstance(self.skip, float) and self.skip == 0.0):
            return _times(self.gain, self.norm(branch))
        return self.onto(_times(self.skip, x), branch)

    def onto(
        self, base: Float[Tensor, "*shape"], branch: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "*shape"]:
        """Compute base + gain · norm(branch)."""
        branch = self.norm(branch)
        if isinstance(self.gain, float) or self.gain.dtype != branch.dtype:
            return base + _times(self.gain, branch)  # addcmul would widen half precision
        return torch.addcmul(base, self.gain, branch)


def scalar(value: float, trainable: bool) -> Float[Tensor, ""] | float:
    """Return an uninitialised parameter if `trainable`, otherwise the value as a number."""
    return nn.Parameter(torch.empty(())) if trainable else float(value)


def _times(gain: Tensor | float, x: Tensor) -> Tensor:
    return x if isinstance(gain, float) and gain == 1.0 else gain * x
