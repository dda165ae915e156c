"""Position slot: learned or sinusoidal vectors added to the embeddings, RoPE, ALiBi, or none.

Letters: B sequences, H heads, T tokens, S keys, K head width, R entries of it that turn, D width.
"""

import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessblocks.blocks.parts import BlockPart, above_zero, finite
from hessblocks.errors import ArgumentError

Places = Int[Tensor, "#B T"]
Rotation = tuple[Float[Tensor, "#B 1 T R"], Float[Tensor, "#B 1 T R"]]


@dataclass(frozen=True, kw_only=True)
class Position(BlockPart, abc.ABC):
    """Position slot: how a token's place enters the model; this default adds nothing."""

    biased: ClassVar[bool] = False
    """Whether it adds to the scores."""

    def build(self, context: int, width: int) -> nn.Module | None:
        """Build a module from positions (B, T) to vectors (B, T, width) to be added, or None."""
        return None

    def rotation(self, positions: Places, head_width: int, dtype: torch.dtype) -> Rotation | None:
        """Compute cosines and sines, each (B, 1, T, R), that turn queries and keys, or None."""
        return None

    def bias(
        self, queries: Places, keys: Int[Tensor, "#B S"], heads: int, dtype: torch.dtype
    ) -> Float[Tensor, "#B H T S"] | None:
        """Compute what is added to the scores, or None."""
        return None


@dataclass(frozen=True, kw_only=True)
class LearnedPosition(Position, kind="learned-position"):
    """Learned positions: one trainable vector per position, as in GPT-2."""

    def build(self, context: int, width: int) -> nn.Module | None:
        """Build a `torch.nn.Embedding`."""
        return nn.Embedding(context, width)


@dataclass(frozen=True, kw_only=True)
class SinusoidalPosition(Position, kind="sinusoidal-position"):
    """Sinusoidal positions (Vaswani et al., 2017), scaled to the size of the embeddings."""

    scale: float = finite(0.02)
    """Amplitude of the sines; their root mean square is scale / √2."""

    def build(self, context: int, width: int) -> nn.Module | None:
        """Build a `Sinusoids` module; it has no parameters and no longest context."""
        return Sinusoids(width, self.scale)


@dataclass(frozen=True, kw_only=True)
class RotaryPosition(Position, kind="rotary-position"):
    """Rotary positions (RoPE): queries and keys turn by position (Su et al., 2021)."""

    base: float = above_zero(10_000.0)
    """Longest wavelength over 2π, in tokens."""
    share: float = above_zero(1.0)
    """Share of each head's entries that turn, the first ones; GPT-NeoX turns a quarter."""

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.share > 1:
            raise ArgumentError(f"{self.kind}: share: expected at most 1, got {self.share!r}")

    def turned(self, head_width: int) -> int:
        """Count the entries that turn."""
        return int(head_width * self.share)

    def rotation(self, positions: Places, head_width: int, dtype: torch.dtype) -> Rotation | None:
        """Compute cosines and sines for halves of the entries that turn."""
        angles = _angles(positions, self.turned(head_width), self.base)
        both = torch.cat([angles, angles], dim=-1)[:, None]
        return both.cos().to(dtype), both.sin().to(dtype)


@dataclass(frozen=True, kw_only=True)
class ALiBiPosition(Position, kind="alibi-position"):
    """Attention with linear biases (ALiBi): the score of tokens i and j is lowered by m |i − j|.

    The slope m of head h of H is 2^(−8h/H), h from 1. Where H is no power of two, the heads behind
    the last power P have every other slope of 2P heads. Source: Press et al. (2022), section 3.
    """

    biased: ClassVar[bool] = True

    def bias(
        self, queries: Places, keys: Int[Tensor, "#B S"], heads: int, dtype: torch.dtype
    ) -> Float[Tensor, "#B H T S"] | None:
        """Compute −m |i − j|."""
        most = 1 << (heads.bit_length() - 1)
        slopes = [2 ** (-8 * (h + 1) / most) for h in range(most)]
        slopes += [2 ** (-4 * (2 * h + 1) / most) for h in range(heads - most)]
        distances = (queries[:, :, None] - keys[:, None, :]).abs()[:, None].to(dtype)
        return -distances.new_tensor(slopes)[:, None, None] * distances


@dataclass(frozen=True, kw_only=True)
class NoPosition(Position, kind="no-position"):
    """No positions: order enters through the causal mask only."""


class Sinusoids(nn.Module):
    """Sinusoidal position vectors; see `SinusoidalPosition`."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.width = width
        self.scale = scale

    def forward(self, positions: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Compute the vectors of the positions."""
        angles = _angles(positions, self.width + self.width % 2, 10_000.0)
        return self.scale * torch.cat([angles.sin(), angles.cos()], dim=-1)[..., : self.width]


def rotate(x_BHTK: Float[Tensor, "B H T K"], rotation: Rotation) -> Float[Tensor, "B H T K"]:
    """Turn each pair (entry i, entry i + R/2) by its angle; entries behind the R-th stay."""
    cosines, sines = rotation
    turning, still = x_BHTK.tensor_split([cosines.shape[-1]], dim=-1)
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cosines + torch.cat([-second, first], dim=-1) * sines
    return torch.cat([turned, still], dim=-1) if still.shape[-1] else turned


def _angles(positions: Tensor, width: int, base: float) -> Tensor:
    # float64, since in float32 the angles of far positions lose their digits
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    return positions[..., None] / base**exponents
