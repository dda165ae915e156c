"""Position slot: learned or sinusoidal vectors added to the embeddings, RoPE, ALiBi, or none.

Letters: B sequences, H heads, T tokens, S keys, K head width, R rotated entries of K, D width.
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
    """Position slot: the position encoding; this base class adds nothing."""

    biased: ClassVar[bool] = False
    """Whether a positional bias is added to the scores."""

    def build(self, context: int, width: int) -> nn.Module | None:
        """Build a module that maps positions (B, T) to vectors (B, T, width) to be added."""
        return None

    def rotation(self, positions: Places, head_width: int, dtype: torch.dtype) -> Rotation | None:
        """Compute the cosines and sines, each (B, 1, T, R), that rotate queries and keys."""
        return None

    def bias(
        self, queries: Places, keys: Int[Tensor, "#B S"], heads: int, dtype: torch.dtype
    ) -> Float[Tensor, "#B H T S"] | None:
        """Compute the bias that is added to the scores."""
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
        """Build a `Sinusoids` module, without parameters and for any context length."""
        return Sinusoids(width, self.scale)


@dataclass(frozen=True, kw_only=True)
class RotaryPosition(Position, kind="rotary-position"):
    """Rotary positions (RoPE): rotate queries and keys by position (Su et al., 2021)."""

    base: float = above_zero(10_000.0)
    """Base of the wavelengths 2π · base^(2i / R), in tokens."""
    share: float = above_zero(1.0)
    """Share of each head's entries that is rotated, from the first on; GPT-NeoX: a quarter."""

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.share > 1:
            raise ArgumentError(f"{self.kind}: share: expected at most 1, got {self.share!r}")

    def turned(self, head_width: int) -> int:
        """Count the rotated entries of a head."""
        return int(head_width * self.share)

    def rotation(self, positions: Places, head_width: int, dtype: torch.dtype) -> Rotation | None:
        """Compute cosines and sines; both halves of the rotated entries have the same angles."""
        angles = _angles(positions, self.turned(head_width), self.base)
        both = torch.cat([angles, angles], dim=-1)[:, None]
        return both.cos().to(dtype), both.sin().to(dtype)


@dataclass(frozen=True, kw_only=True)
class ALiBiPosition(Position, kind="alibi-position"):
    """Attention with linear biases (ALiBi): adds −m |i − j| to the score of tokens i and j.

    Head h of H, from 1, has the slope m = 2^(−8h/H). If H is not a power of two, P is the next
    lower one: the first P heads have the slopes of P heads, the others every second slope of 2P
    heads. Source: Press et al. (2022), section 3.
    """

    biased: ClassVar[bool] = True

    def bias(
        self, queries: Places, keys: Int[Tensor, "#B S"], heads: int, dtype: torch.dtype
    ) -> Float[Tensor, "#B H T S"] | None:
        """Compute −m |i − j|."""
        power = 1 << (heads.bit_length() - 1)
        slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
        slopes += [2 ** (-4 * (2 * h + 1) / power) for h in range(heads - power)]
        distances = (queries[:, :, None] - keys[:, None, :]).abs()[:, None].to(dtype)
        return -distances.new_tensor(slopes)[:, None, None] * distances


@dataclass(frozen=True, kw_only=True)
class NoPosition(Position, kind="no-position"):
    """No position encoding: only the causal mask depends on the order of tokens."""


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
    """Rotate each pair (entry i, entry i + R/2) by its angle; later entries do not change."""
    cosines, sines = rotation
    if cosines.shape[-1] < x_BHTK.shape[-1]:
        turning, still = x_BHTK.tensor_split([cosines.shape[-1]], dim=-1)
        return torch.cat([rotate(turning, rotation), still], dim=-1)
    first, second = x_BHTK.chunk(2, dim=-1)
    return x_BHTK * cosines + torch.cat([-second, first], dim=-1) * sines


def _angles(positions: Tensor, width: int, base: float) -> Tensor:
    # float64, since float32 loses digits of the angles at large positions
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    return positions[..., None] / base**exponents
