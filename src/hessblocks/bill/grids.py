"""Grids of rounded activations: bits between the ends of a token or channel, and formats.

Letters: S tokens, K width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.linalg import working_dtype
from hessblocks.tensor_formats import Format, format_of

BLOCK = 32
"""Tokens that share a scale of a channel, as in KIVI (2402.02750); the last, incomplete block of a
context stays exact."""
Kind = int | str | Format
"""Number of bits, or a storage format."""


@dataclass(frozen=True)
class Grid:
    """How an activation is rounded."""

    how: str
    """Description, such as `3 bits per token`."""
    bits: float
    """Bits per entry; scales are counted by formats alone."""
    levels: Callable[[Float[Tensor, "... S K"]], Float[Tensor, "... S K"]]
    """Rounds a tensor to nearest."""
    exact: int = 0
    """Number of first tokens that stay exact."""
    by_place: bool = False
    """Whether the result depends on where a sequence begins: blocks of tokens, first tokens."""
    fewest: int = 1
    """Tokens of a sequence without which nothing is rounded."""

    def new(self, old: Float[Tensor, "... S K"]) -> Float[Tensor, "... S K"]:
        """Round a tensor, in its own dtype."""
        rounded = self.levels(old.to(working_dtype(old.dtype))).to(old.dtype)
        return torch.cat([old[..., : self.exact, :], rounded[..., self.exact :, :]], -2)


def _between_ends(x: Tensor, bits: int, axis: int) -> Tensor:
    """Round to 2^b levels between the smallest and the largest entry along an axis."""
    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    step = (high - low) / (2**bits - 1)
    return torch.where(step > 0, ((x - low) / step).round() * step + low, x)


def _per_channel(x: Tensor, bits: int) -> Tensor:
    length = x.shape[-2] // BLOCK * BLOCK
    blocks = x[..., :length, :].unflatten(-2, (-1, BLOCK))
    return torch.cat([_between_ends(blocks, bits, -2).flatten(-3, -2), x[..., length:, :]], -2)


def _symmetric(x: Tensor, bits: int) -> Tensor:
    """Round to multiples of a step that maps the largest magnitude of a token to 2^(b−1) − 1."""
    step = x.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.where(step > 0, (x / step).round() * step, x)


def grids_of(name: str, kinds: Any, per: str, exact: int, width: int) -> Iterator[Grid]:
    """Make the grid of each number of bits or format."""
    rounding: dict[str, Callable[..., Tensor]] = {
        "token": partial(_between_ends, axis=-1),
        "channel": _per_channel,
    }
    several = kinds if isinstance(kinds, Iterable) and not isinstance(kinds, str) else (kinds,)
    tail = {0: "", 1: ", first token exact"}.get(exact, f", first {exact} tokens exact")
    for kind in several:
        if isinstance(kind, int) and not isinstance(kind, bool):
            least = 2 if per == "inputs" else 1
            if not least <= kind <= 16:
                raise ArgumentError(f"{name}: expected bits from {least} to 16, got {kind!r}")
            how = f"{kind} bits" if per == "inputs" else f"{kind} bits per {per}"
            levels = rounding.get(per, _symmetric)
            by_place = per == "channel" or exact > 0
            fewest = BLOCK if per == "channel" else exact + 1
            yield Grid(how + tail, kind, partial(levels, bits=kind), exact, by_place, fewest)
            continue
        form = format_of(kind)
        if not form.fits((1, width)):
            raise ArgumentError(f"{name}: {form.name} cannot hold rows of {width} entries")
        bits = 8 * form.bytes((1, width)) / width
        yield Grid(form.name + tail, bits, form.rounded, exact, exact > 0, exact + 1)
