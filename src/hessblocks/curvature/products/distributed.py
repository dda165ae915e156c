"""Divide the rows of the batches among the processes of torchrun.

Products are linear in the data, so that one all-reduce per product adds the processes' parts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hessblocks.curvature.losses import Batches
from hessblocks.curvature.witness import readable_errors
from hessblocks.errors import ArgumentError, RunError, check_name

FAILED = "curvature: another process failed; its own message says why"


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Rank and size of the process group that shares one problem; one process by default."""

    shard: str | None = None
    """`batches` if the processes divide the rows; else None."""
    rank: int = 0
    """Rank of this process."""
    count: int = 1
    """Number of processes, also of those that share a sharded model."""

    @property
    def turns(self) -> slice:
        """Slice that selects this process's passes from those of all."""
        return slice(self.rank, None, self.count) if self.shard else slice(0, None, 1)

    def shares(self, passes: Sequence[int]) -> list[list[int]]:
        """List the passes of every process."""
        ranks = range(self.count if self.shard else 1)
        return [list(passes[rank :: len(ranks)]) for rank in ranks]

    def least(self, amount: int, device: torch.device) -> int:
        """Compute the minimum of `amount` over the processes, so that all make the same plan."""
        if self.count == 1:
            return amount
        least = torch.tensor(amount, device=device)
        all_reduce(least, dist.ReduceOp.MIN)
        return int(least)

    def rows_each(self, rows: int) -> int:
        """Return the most rows per pass for which every process gets a part of `rows` rows."""
        return math.ceil(rows / self.count) if self.shard else rows

    def summed(self, share: float, device: torch.device) -> float:
        """Sum a number over the processes, if they divide the rows."""
        if not self.shard:
            return share
        return float(self.total(torch.tensor(share, dtype=torch.float64, device=device)))

    def total(self, share: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """All-reduce `share` over the processes that divide the rows, in place.

        Returns:
            The same tensor, now the sum.

        Raises:
            RunError: another process failed.
        """
        if self.shard:
            all_reduce(share)
            if share.isnan().all():
                raise RunError(FAILED)
        return share

    def fail(self, share: Float[Tensor, "..."]) -> None:
        """Send NaN in place of `share`, so that the waiting processes notice the failure."""
        if self.shard:
            all_reduce(share.fill_(float("nan")))


def all_reduce(
    share: Shaped[Tensor, "..."], operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> None:
    """All-reduce over the default process group, in place.

    Raises:
        RunError: another process does not answer within the group's timeout.
    """
    with readable_errors():
        dist.all_reduce(share, op=operation)


def check_processes_agree(model: nn.Module, batches: Batches, processes: Processes) -> None:
    """Check that all processes have the same weights and batches.

    Args:
        model: this process's model.
        batches: this process's batches.
        processes: the process group.

    Raises:
        ArgumentError: they differ between processes.
        RunError: another process does not answer within the group's timeout.
    """
    if processes.count == 1:
        return
    weights = [(n, p.detach()) for n, p in model.named_parameters() if not isinstance(p, DTensor)]
    sums = [(name, float(parameter.double().sum())) for name, parameter in weights]
    _check_same("weights", repr(sums), "load the same model in each")
    _check_same("batches", batches.digest(), "give all of them the same ones")


def _check_same(name: str, digest: str, advice: str) -> None:
    digests: list[str] = [""] * dist.get_world_size()
    with readable_errors():
        dist.all_gather_object(digests, digest)
    differing = next((rank for rank, theirs in enumerate(digests) if theirs != digests[0]), None)
    if differing is not None:
        raise ArgumentError(f"problem: processes 0 and {differing} hold different {name}; {advice}")


def processes(shard: str | None, *, sharded: bool = False) -> Processes:
    """Find this process's place in the default process group.

    Args:
        shard: `batches` if the processes divide the rows.
        sharded: whether the model is sharded.

    Returns:
        Rank and size of the group; a single process if nothing is shared.

    Raises:
        ArgumentError: `shard` is unknown, there is no process group, or the model is sharded, too.
    """
    if shard is not None:
        check_name("shard", shard, ("batches",))
        if sharded:
            raise ArgumentError(
                "shard: processes that hold parts of one model compute the same rows; leave shard "
                "out, or load an unsharded copy"
            )
        if not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError(
                f"shard: {shard!r} needs several processes; start with torchrun and call "
                "torch.distributed.init_process_group first, or leave shard out"
            )
    if shard is None and not sharded:
        return Processes()
    return Processes(shard=shard, rank=dist.get_rank(), count=dist.get_world_size())
