"""Norm slot: LayerNorm, RMSNorm, DyT, Derf or none."""

import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.blocks.parts import BlockPart, above_zero, finite


@dataclass(frozen=True, kw_only=True)
class Norm(BlockPart, abc.ABC):
    """Norm of each token's vector."""

    scale_free: ClassVar[bool] = False
    """Whether the input's scale does not change the output; at zero the slope is 1 / sqrt(eps)."""

    @abc.abstractmethod
    def build(self, width: int) -> nn.Module:
        """Build a module that maps (..., width) to (..., width)."""


@dataclass(frozen=True, kw_only=True)
class RMSNorm(Norm, kind="rms-norm"):
    """RMSNorm: x / sqrt(mean(x²) + eps), with a trainable gain (Zhang & Sennrich, 2019, eq. 4)."""

    scale_free: ClassVar[bool] = True

    eps: float = above_zero(1e-8)
    """Added to the mean square."""
    gain: float | None = finite(1.0, optional=True)
    """Initial value of the trainable gain; None means no gain and no parameter."""

    def build(self, width: int) -> nn.Module:
        """Build a `torch.nn.RMSNorm`."""
        return ScaledRMSNorm(self, width)


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Norm, kind="layer-norm"):
    """LayerNorm: (x − mean) / sqrt(variance + eps), with a trainable gain and shift."""

    scale_free: ClassVar[bool] = True

    eps: float = above_zero(1e-5)
    """Added to the variance."""
    gain: float = finite(1.0)
    """Initial value of the trainable gain."""

    def build(self, width: int) -> nn.Module:
        """Build a `torch.nn.LayerNorm`."""
        return ScaledLayerNorm(self, width)


@dataclass(frozen=True, kw_only=True)
class DyT(Norm, kind="dyt"):
    """Dynamic tanh: gain · tanh(scale · x) + shift, all trainable (Zhu et al., 2025)."""

    scale: float = finite(0.5)
    """Initial value of the trainable scale inside the tanh."""

    def build(self, width: int) -> nn.Module:
        """Build a `DynamicTanh` module."""
        return DynamicTanh(width, self.scale)


@dataclass(frozen=True, kw_only=True)
class Derf(Norm, kind="derf"):
    """Dynamic error function: gain · erf(scale · x + shift) + bias, all trainable.

    Source: Chen et al. (2025), arXiv 2512.10938.
    """

    scale: float = finite(0.5)
    """Initial value of the trainable scale inside the error function; its shift starts at 0."""

    def build(self, width: int) -> nn.Module:
        """Build a `DynamicErf` module."""
        return DynamicErf(width, self.scale)


@dataclass(frozen=True, kw_only=True)
class NoNorm(Norm, kind="no-norm"):
    """No norm: the identity."""

    def build(self, width: int) -> nn.Module:
        """Build a `torch.nn.Identity`."""
        return nn.Identity()


class ScaledRMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` with a configured initial gain."""

    def __init__(self, part: RMSNorm, width: int) -> None:
        self._initial_gain = part.gain  # before torch's constructor, which resets the parameters
        super().__init__(width, eps=part.eps, elementwise_affine=part.gain is not None)

    def reset_parameters(self) -> None:
        """Set the configured gain, if there is one."""
        if self._initial_gain is not None:
            nn.init.constant_(self.weight, self._initial_gain)


class ScaledLayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` with a configured initial gain."""

    def __init__(self, part: LayerNorm, width: int) -> None:
        self._initial_gain = part.gain
        super().__init__(width, eps=part.eps)

    def reset_parameters(self) -> None:
        """Set the configured gain and shift 0."""
        nn.init.constant_(self.weight, self._initial_gain)
        nn.init.zeros_(self.bias)


class DynamicTanh(nn.Module):
    """Dynamic tanh (DyT), used instead of a norm; see `DyT`."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self._initial_scale = scale
        self.scale = nn.Parameter(torch.empty(()))
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the configured scale, gain 1 and shift 0."""
        nn.init.constant_(self.scale, self._initial_scale)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        """Apply to (..., width)."""
        return torch.tanh(self.scale * x) * self.weight + self.bias


class DynamicErf(DynamicTanh):
    """Dynamic error function (Derf), used instead of a norm; see `Derf`."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__(width, scale)
        self.shift = nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        """Set the configured scale, gain 1 and shifts 0."""
        super().reset_parameters()
        if hasattr(self, "shift"):  # not yet in the call by the base constructor
            nn.init.zeros_(self.shift)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        """Apply to (..., width)."""
        return torch.erf(self.scale * x + self.shift) * self.weight + self.bias
