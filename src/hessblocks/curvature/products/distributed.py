"""Divide the rows of the batches, or those of the parameters, among the processes of torchrun.

Products are linear in the data, so that one all-reduce per product adds the processes' parts.

FSDP2's `fully_shard` divides the parameters, which allows gradients alone. All processes compute
the same batches, and torch gathers a layer's weights while it needs them. So the processes divide
the memory, not the work. The backward pass averages the processes' equal gradients, and leaves each
process its rows; a dot product is the sum of those of the rows.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.losses import Batches
from hessblocks.curvature.witness import readable_errors
from hessblocks.errors import ArgumentError, RunError, check_name

WHOLE = (
    "model: its parameters are sharded over processes (FSDP2), which allows only sampled gradients "
    "(hb.price, method='sampled'); load an unsharded copy"
)
"""Message where whole parameters are needed."""


def is_sharded(model: nn.Module) -> bool:
    """Tell whether `fully_shard` has sharded the model's parameters, over all processes.

    Returns:
        Whether it has; False if all parameters are whole.

    Raises:
        ArgumentError: a parameter is sharded along another axis or over other processes than the
            default group's.
    """
    sharded = {name: p for name, p in model.named_parameters() if isinstance(p, DTensor)}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    for name, parameter in sharded.items():
        mesh = parameter.device_mesh
        if (*parameter.placements, mesh.size()) != (Shard(0), dist.get_world_size()):
            raise ArgumentError(
                f"model: {name!r} is not sharded by rows over all processes, as "
                "torch.distributed.fsdp.fully_shard(model) does without further arguments; shard "
                "the whole model so, or load an unsharded copy"
            )
    return bool(sharded)


def _check_reduction(model: nn.Module) -> None:
    """Check that the backward pass averages gradients over the processes.

    torch tells these settings only by private attributes.
    """
    states = (m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule))
    for group in filter(None, (state._fsdp_param_group for state in states)):
        averages = group.reduce_grads and group.gradient_divide_factor is None
        if averages and all(p.unsharded_accumulated_grad is None for p in group.fsdp_params):
            continue
        raise ArgumentError(
            "model: its backward pass does not average gradients over the processes; leave out "
            "set_requires_gradient_sync(False) and set_gradient_divide_factor, and measure before "
            "or after an accumulated update"
        )


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Enter evaluation mode; on exit, restore modes and shard all parameters again."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
            if isinstance(module, FSDPModule):
                module.reshard()


def local_rows(parameter: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Return this process's rows of a parameter, without gradient history, sharing its memory."""
    detached: Any = parameter.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def rows_like(
    tensor: Shaped[Tensor, "..."], parameter: Shaped[Tensor, "..."]
) -> Shaped[Tensor, "rows ..."]:
    """Slice this process's rows of a sharded parameter from a whole tensor of its shape.

    Returns:
        The rows; of a parameter that is not sharded, such as a scalar, all in the first process.
    """
    rows = tensor if tensor.ndim else tensor[None]
    ranks = dist.get_world_size() if isinstance(parameter, DTensor) else 1
    rows_each = math.ceil(len(rows) / ranks)
    start = min(len(rows), dist.get_rank() * rows_each)
    return rows[start : start + rows_each]


class GatheredParameters(Mapping[str, Float[Tensor, "..."]]):
    """Mapping from names to whole parameters; each is all-gathered when it is read."""

    def __init__(self, model: nn.Module) -> None:
        """Store the sharded parameters."""
        self._sharded: dict[str, Any] = {
            n: p for n, p in model.named_parameters() if p.requires_grad
        }

    def __getitem__(self, name: str) -> Float[Tensor, "..."]:
        """All-gather a parameter; every process must read the same names in the same order."""
        parameter = self._sharded[name].detach()
        value: Tensor = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        return value

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the trainable parameters."""
        return iter(self._sharded)

    def __len__(self) -> int:
        """Count the trainable parameters."""
        return len(self._sharded)


class LocalEntries:
    """Entries of several groups in this process's rows, in an order of no meaning."""

    def __init__(self, groups: Sequence[ParameterGroup], model: nn.Module) -> None:
        """Make a mask of the entries in the flattened rows, for each view."""
        parameters = dict(model.named_parameters())
        self._masks: list[tuple[str, Bool[Tensor, " entries"]]] = []
        self.sizes: list[int] = []
        """Number of entries of each group."""
        for group in groups:
            first = len(self._masks)
            for view in group.views:
                parameter = parameters[view.parameter]
                mask = torch.zeros(parameter.numel(), dtype=torch.bool, device=parameter.device)
                mask.as_strided(view.shape, view.stride, view.offset).fill_(True)
                rows = rows_like(mask.view(parameter.shape), parameter)
                self._masks.append((view.parameter, rows.flatten().clone()))  # frees the mask
            self.sizes.append(sum(int(mask.sum()) for _, mask in self._masks[first:]))

    def add_to(self, vector: Float[Tensor, " size"], gradients: Mapping[str, Any]) -> None:
        """Add the entries of gradients by parameter name, of this process's rows, to a vector."""
        vector += torch.cat([gradients[name].flatten()[mask] for name, mask in self._masks])


def gradients(
    model: nn.Module,
    logits: Float[Tensor, "..."],
    cotangent: Float[Tensor, "..."],
    names: Iterable[str],
    *,
    keep: bool,
) -> dict[str, Float[Tensor, "rows ..."]]:
    """Multiply a cotangent of the logits by Jᵀ; return this process's rows of each parameter.

    The parameters' `.grad` is restored.

    Args:
        model: sharded model.
        logits: logits with their graph.
        cotangent: equal on all processes.
        names: names of the parameters.
        keep: whether to keep the graph.

    Returns:
        Gradients by parameter name.

    Raises:
        ArgumentError: the backward pass does not average gradients over the processes.
        RunError: a parameter gets no gradient.
    """
    _check_reduction(model)
    parameters: dict[str, Any] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    before = {name: parameter.grad for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    try:
        logits.backward(cotangent, retain_graph=keep)
        slopes = {name: parameters[name].grad for name in names}
    finally:
        for name, gradient in before.items():
            parameters[name].grad = gradient
    if absent := [name for name, gradient in slopes.items() if gradient is None]:
        raise RunError(
            f"curvature: the backward pass gives {absent[0]!r} no gradient; freeze it "
            "(requires_grad_(False)) if the logits do not depend on it"
        )
    return {
        name: local_rows(g) if isinstance(g, DTensor) else rows_like(g, g)
        for name, g in slopes.items()
    }


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
