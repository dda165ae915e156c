"""Weights put together from the rows that each process holds, and sums of gradients dealt out again.

Gather maps the rows s_0 … s_{P−1} of P processes to the whole W on each of them; its adjoint maps the
gradients g_0 … g_{P−1} to the rows of Σ_p g_p. Each is the other's derivative, as often as is asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from hessblocks.errors import RunError
from hessblocks.linalg import working_dtype


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The rows of one parameter that a process holds: equal pieces, as FSDP2 cuts them."""

    shape: tuple[int, ...]
    """Of the whole parameter; a number counts as one row."""
    rank: int
    """Number of this process."""
    count: int
    """How many there are."""

    @property
    def rows(self) -> int:
        """Rows of the whole."""
        return self.shape[0] if self.shape else 1

    @property
    def each(self) -> int:
        """Rows of a process; the last ones may hold fewer, or none."""
        return math.ceil(self.rows / self.count)

    @property
    def own(self) -> slice:
        """The rows of this process."""
        start, stop = self.rank * self.each, (self.rank + 1) * self.each
        return slice(min(start, self.rows), min(stop, self.rows))

    @property
    def bounds(self) -> tuple[int, int]:
        """First and last but one of this process's entries, in the parameter flattened row by row."""
        width = math.prod(self.shape[1:])
        return self.own.start * width, self.own.stop * width

    def part(self, whole: Shaped[Tensor, "..."]) -> Shaped[Tensor, "own ..."]:
        """This process's rows of a whole parameter."""
        return whole.reshape(self.rows, *self.shape[1:])[self.own]


class Gather(torch.autograd.Function):
    """From each process's rows to the whole parameters, on every process."""

    @staticmethod
    def forward(
        ctx: Any, cuts: Sequence[Cut], *shards: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."], ...]:
        """All-gather each of them."""
        ctx.cuts = cuts
        return tuple(_gathered(cut, shard) for cut, shard in zip(cuts, shards, strict=True))

    @staticmethod
    def backward(
        ctx: Any, *gradients: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."] | None, ...]:
        """Sum the processes' gradients, of those parameters whose own is asked for."""
        wanted = [number for number, asked in enumerate(ctx.needs_input_grad[1:]) if asked]
        found: list[Tensor | None] = [None] * len(gradients)
        cuts = [ctx.cuts[number] for number in wanted]
        shares = Scatter.apply(cuts, *(gradients[number] for number in wanted))
        for number, share in zip(wanted, shares, strict=True):
            found[number] = share
        return None, *found


class Scatter(torch.autograd.Function):
    """From each process's whole tensors to its rows of their sums."""

    @staticmethod
    def forward(
        ctx: Any, cuts: Sequence[Cut], *wholes: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."], ...]:
        """Reduce-scatter each of them; half precision is added up in float32."""
        ctx.cuts = cuts
        return tuple(_summed(cut, whole) for cut, whole in zip(cuts, wholes, strict=True))

    @staticmethod
    def backward(
        ctx: Any, *directions: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."] | None, ...]:
        """Put the processes' rows together."""
        return None, *Gather.apply(ctx.cuts, *directions)


@contextmanager
def all_or_none(device: torch.device) -> Iterator[None]:
    """Where a process may fail while others would wait for it in what follows: then all of them fail.

    Args:
        device: of the tensors that are exchanged.

    Raises:
        RunError: another process failed.
    """
    well = torch.ones((), device=device)
    try:
        yield
    except Exception:
        dist.all_reduce(well.zero_(), op=dist.ReduceOp.MIN)
        raise
    dist.all_reduce(well, op=dist.ReduceOp.MIN)
    if not well:
        raise RunError("curvature: another process failed; its own message says why")


def _gathered(cut: Cut, shard: Tensor) -> Tensor:
    whole = shard.new_empty(cut.count * cut.each, *cut.shape[1:])
    dist.all_gather_into_tensor(whole, _padded(shard, cut.each))
    return whole[: cut.rows].reshape(cut.shape)


def _summed(cut: Cut, whole: Tensor) -> Tensor:
    wide = whole.to(working_dtype(whole.dtype)).reshape(cut.rows, *cut.shape[1:])
    own = wide.new_empty(cut.each, *cut.shape[1:])
    dist.reduce_scatter_tensor(own, _padded(wide, cut.count * cut.each))
    return own[: cut.own.stop - cut.own.start].to(whole.dtype)


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """With zeros below, so that all processes send as much."""
    if tensor.shape[0] == rows:
        return tensor.contiguous()
    padded = tensor.new_zeros(rows, *tensor.shape[1:])
    padded[: tensor.shape[0]] = tensor
    return padded
