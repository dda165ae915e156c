"""Divide the batches or the vectors among the processes of torchrun.

Products are linear in the data and in the vectors, so that one all-reduce per product adds the
processes' parts. If the model is sharded, each forward or backward pass exchanges weights and
gradients, so that all processes must run equally many passes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.curvature.losses import Batches
from hessblocks.curvature.sharding import check_alike, code_of, is_whole, parts_of
from hessblocks.errors import ArgumentError, RunError, check_name

SHARDS = ("batches", "vectors", "own")


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Rank and size of the process group that shares one problem; one process by default."""

    shard: str | None = None
    """How the work is shared: batches, vectors or own (see `Problem`); None: not at all."""
    rank: int = 0
    """Rank of this process."""
    count: int = 1
    """Number of processes."""
    sharded: bool = False
    """Whether the parameters are sharded over the processes."""

    @property
    def turns(self) -> slice:
        """Slice that selects this process's passes from those of all."""
        return slice(self.rank, None, self.count) if self.shard == "batches" else slice(0, None, 1)

    def shares(self, passes: Sequence[int]) -> list[list[int]]:
        """List the passes of every process."""
        if self.shard != "batches":
            return [list(passes)]
        return [list(passes[rank :: self.count]) for rank in range(self.count)]

    def least(self, amount: int, device: torch.device) -> int:
        """Compute the minimum of `amount` over the processes, so that all make the same plan."""
        if self.shard is None:
            return amount
        least = torch.tensor(amount, device=device)
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        return int(least)

    def most(self, number: int, device: torch.device) -> int:
        """Compute the maximum over the processes if the model is sharded; else return `number`."""
        return -self.least(-number, device) if self.sharded else number

    def idle(self, passes: int, device: torch.device) -> int:
        """Count this process's missing passes to the maximum, if the model is sharded; else 0."""
        return self.most(passes, device) - passes

    def rows_each(self, rows: int) -> int:
        """Return the most rows per pass for which every process gets a part of `rows` rows."""
        return math.ceil(rows / self.count) if self.shard == "batches" else rows

    def own_vectors(self, count: int) -> slice:
        """Return the slice of `count` vectors that this process multiplies."""
        if self.shard != "vectors":
            return slice(0, count)
        each = math.ceil(count / self.count)
        return slice(min(count, self.rank * each), min(count, (self.rank + 1) * each))

    def summed(self, share: float, device: torch.device, *, of: Sequence[str]) -> float:
        """Sum a number over the processes, if they share the work."""
        if self.shard not in of:
            return share
        return float(self.total(torch.tensor(share, dtype=torch.float64, device=device)))

    def total(self, share: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """All-reduce `share` over all processes, in place.

        Returns:
            The same tensor, now the sum.

        Raises:
            RunError: another process failed.
        """
        if self.shard is not None:
            dist.all_reduce(share)
            if share.isnan().all():
                raise RunError("curvature: another process failed; its own message says why")
        return share

    def fail(self, share: Float[Tensor, "..."]) -> None:
        """Send NaN in place of `share`, so that the waiting processes notice the failure."""
        if self.shard is not None:
            dist.all_reduce(share.fill_(float("nan")))


def check_all_alike(model: nn.Module, batches: Batches, processes: Processes) -> None:
    """Check that all processes have the same code, weights and, unless `own`, batches.

    Args:
        model: this process's model.
        batches: this process's batches.
        processes: the process group.

    Raises:
        ArgumentError: they differ between processes.
    """
    if processes.shard is None:
        return
    if processes.sharded:
        parts_of(model)
        check_alike("shard", "code", code_of(model), "start all of them with the same")
    named = [(n, p.detach()) for n, p in model.named_parameters() if p.requires_grad]
    sums = [(name, float(p.double().sum())) for name, p in named if is_whole(p)]
    check_alike("shard", "weights", repr(sums), "load the same model in each")
    if processes.shard != "own":
        advice = "give all of them the same ones, or use shard='own'"
        check_alike("shard", "batches", batches.digest(), advice)


def processes(shard: str | None, *, sharded: bool = False) -> Processes:
    """Find this process's place in the default process group.

    Args:
        shard: how the work is shared.
        sharded: whether the model is sharded; then the default of `shard` is `batches`.

    Returns:
        Rank and size of the group; a single process if nothing is shared.

    Raises:
        ArgumentError: `shard` is unknown, is `vectors` with a sharded model, or there is no process
            group.
    """
    if shard is None and not sharded:
        return Processes()
    shard = shard or "batches"
    check_name("shard", shard, SHARDS)
    if sharded and shard == "vectors":
        raise ArgumentError(
            "shard: 'vectors' would give processes that hold parts of one model different work; "
            "use 'batches', or 'own' where each has batches of its own"
        )
    if not (dist.is_available() and dist.is_initialized()):
        raise ArgumentError(
            f"shard: {shard!r} needs several processes; start with torchrun and call "
            "torch.distributed.init_process_group first, or leave shard out"
        )
    return Processes(
        shard=shard, rank=dist.get_rank(), count=dist.get_world_size(), sharded=sharded
    )
