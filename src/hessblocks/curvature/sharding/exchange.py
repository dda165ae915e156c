"""All-gather weights from the rows of each process, and reduce-scatter their gradients.

All-gather maps the rows s_0 … s_{P−1} of P processes to the whole W on each process. Its adjoint,
reduce-scatter, maps the gradients g_0 … g_{P−1} to the rows of Σ_p g_p. The backward pass of each
is the other, so that derivatives of every order exist.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg import working_dtype


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Rows of one parameter on this process, as FSDP2 shards them: ⌈rows / processes⌉ each."""

    shape: tuple[int, ...]
    """Shape of the whole parameter; a scalar counts as one row."""
    rank: int
    """Rank of this process."""
    count: int
    """Number of processes."""

    @property
    def rows(self) -> int:
        """Number of rows of the whole parameter."""
        return self.shape[0] if self.shape else 1

    @property
    def each(self) -> int:
        """Number of rows per process; the last processes may have fewer, or none."""
        return math.ceil(self.rows / self.count)

    @property
    def own(self) -> slice:
        """Slice of this process's rows."""
        start, stop = self.rank * self.each, (self.rank + 1) * self.each
        return slice(min(start, self.rows), min(stop, self.rows))

    @property
    def width(self) -> int:
        """Count the entries of a row."""
        return math.prod(self.shape[1:])

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Shape of this process's rows."""
        return self.own.stop - self.own.start, *self.shape[1:]

    @property
    def bounds(self) -> tuple[int, int]:
        """Start and end (exclusive) of this process's entries in the flattened parameter."""
        return self.own.start * self.width, self.own.stop * self.width

    def part(self, whole: Shaped[Tensor, "..."]) -> Shaped[Tensor, "own ..."]:
        """Slice this process's rows from a whole parameter."""
        return whole.reshape(self.rows, *self.shape[1:])[self.own]


@dataclass
class Sums:
    """Switch of a `Gather`: whether its backward pass computes the gradients' values."""

    read: bool = True
    """Whether values are needed; if only their derivatives are, nothing is communicated."""

    @contextmanager
    def only_differentiated(self) -> Iterator[None]:
        """Enter a block in which gradients need a graph, but no values."""
        self.read = False
        try:
            yield
        finally:
            self.read = True


class Gather(torch.autograd.Function):
    """All-gather from each process's rows to the whole parameters, on every process."""

    @staticmethod
    def forward(
        ctx: Any, cuts: Sequence[Cut], sums: Sums, *shards: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."], ...]:
        """All-gather each parameter."""
        ctx.cuts, ctx.sums = cuts, sums
        return tuple(_gathered(cuts, shards))

    @staticmethod
    def backward(
        ctx: Any, *gradients: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."] | None, ...]:
        """Reduce-scatter the gradients that are needed."""
        wanted = [number for number, asked in enumerate(ctx.needs_input_grad[2:]) if asked]
        found: list[Tensor | None] = [None] * len(gradients)
        cuts = [ctx.cuts[number] for number in wanted]
        shares = Scatter.apply(cuts, ctx.sums.read, *(gradients[number] for number in wanted))
        for number, share in zip(wanted, shares, strict=True):
            found[number] = share
        return None, None, *found


class Scatter(torch.autograd.Function):
    """Reduce-scatter from each process's whole tensors to its rows of their sums."""

    @staticmethod
    def forward(
        ctx: Any, cuts: Sequence[Cut], read: bool, *wholes: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."], ...]:
        """Reduce-scatter each gradient; half precision is summed in float32."""
        ctx.cuts = cuts
        if not read:
            pairs = zip(cuts, wholes, strict=True)
            # tensors of the right shape for autograd, without communication or memory
            return tuple(whole.new_zeros(()).expand(cut.own_shape) for cut, whole in pairs)
        return tuple(_summed(cuts, wholes))

    @staticmethod
    def backward(
        ctx: Any, *directions: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."] | None, ...]:
        """All-gather the processes' rows."""
        return None, None, *Gather.apply(ctx.cuts, Sums(), *directions)


def check_alike(name: str, what: str, digest: str, advice: str) -> None:
    """Check that all processes have the same digest.

    Args:
        name: name of the argument, for the message.
        what: name of the digested thing ("weights"), for the message.
        digest: this process's digest.
        advice: advice for the message.

    Raises:
        ArgumentError: digests differ; raised in every process.
    """
    digests: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    other = next((rank for rank, one in enumerate(digests) if one != digests[0]), None)
    if other is not None:
        raise ArgumentError(f"{name}: processes 0 and {other} hold different {what}; {advice}")


@contextmanager
def all_or_none(device: torch.device) -> Iterator[None]:
    """Make all processes fail if one does; otherwise they would wait for it.

    Args:
        device: device of the tensors that are exchanged.

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


def _gathered(cuts: Sequence[Cut], shards: Sequence[Tensor]) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    for some in _together(cuts, shards):
        own = [_padded(shards[number], cuts[number].each).flatten() for number in some]
        sent = own[0] if len(own) == 1 else torch.cat(own)
        wholes = sent.new_empty(cuts[0].count, len(sent))
        dist.all_gather_into_tensor(wholes.view(-1), sent)
        found |= zip(some, _taken_apart(wholes, [cuts[number] for number in some]), strict=True)
        del wholes  # frees the memory before the next, larger tensors
    return [found[number] for number in range(len(cuts))]


def _taken_apart(wholes: Tensor, cuts: Sequence[Cut]) -> list[Tensor]:
    """Split (P, entries per process) into whole parameters; a single parameter is not copied."""
    pieces = wholes.split([cut.each * cut.width for cut in cuts], dim=1)
    return [
        piece.reshape(-1, cut.width)[: cut.rows].reshape(cut.shape)
        for cut, piece in zip(cuts, pieces, strict=True)
    ]


def _summed(cuts: Sequence[Cut], wholes: Sequence[Tensor]) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    for some in _together(cuts, wholes):
        wide = [_by_process(cuts[number], wholes[number]) for number in some]
        sent = wide[0] if len(wide) == 1 else torch.cat(wide, dim=1)
        own = sent.new_empty(sent.shape[1])
        dist.reduce_scatter_tensor(own, sent.view(-1))
        pieces = own.split([one.shape[1] for one in wide])
        for number, piece in zip(some, pieces, strict=True):
            shape = cuts[number].own_shape
            found[number] = piece[: math.prod(shape)].view(shape).to(wholes[number].dtype)
    return [found[number] for number in range(len(cuts))]


def _by_process(cut: Cut, whole: Tensor) -> Tensor:
    """Reshape a whole parameter to (P, entries per process), in at least float32."""
    wide = whole.to(working_dtype(whole.dtype)).reshape(cut.rows, cut.width)
    return _padded(wide, cut.count * cut.each).view(cut.count, -1)


def _together(cuts: Sequence[Cut], tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield indices of tensors that form one message, no larger than the largest tensor."""
    sizes = [cut.rows * cut.width for cut in cuts]
    order = sorted(range(len(cuts)), key=lambda number: (str(tensors[number].dtype), sizes[number]))
    some: list[int] = []
    for number in order:
        alike = some and tensors[some[0]].dtype == tensors[number].dtype
        if some and not (alike and sum(sizes[one] for one in (*some, number)) <= max(sizes)):
            yield some
            some = []
        some.append(number)
    if some:
        yield some


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """Append zero rows up to `rows`, so that all processes send equally many."""
    if tensor.shape[0] == rows:
        return tensor.contiguous()
    padded = tensor.new_zeros(rows, *tensor.shape[1:])
    padded[: tensor.shape[0]] = tensor
    return padded
