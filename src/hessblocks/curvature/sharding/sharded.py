"""Shard a model over the processes of torchrun, from memory or from a folder."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from hessblocks.curvature.sharding.exchange import Cut
from hessblocks.curvature.sharding.folder import WeightsFolder, names_of
from hessblocks.curvature.sharding.layerwise import parts_of
from hessblocks.errors import ArgumentError


def sharded(
    model: nn.Module | str | PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Any:
    """Shard a model by rows over the default group, as FSDP2's `fully_shard` does.

    Every process keeps ⌈rows / processes⌉ rows of each parameter. `Problem` then makes one layer
    whole at a time, and large embeddings some rows at a time. For curvature alone: its forward pass
    does not gather.

    Args:
        model: a module, whose parameters are replaced in place; or a folder with `config.json` and
            safetensors, of which every process reads its own rows alone.
        dtype: of the parameters of a folder; None: as they are stored.
        device: where a folder is read to; None: this process's GPU under nccl, else the CPU.

    Returns:
        The model, in evaluation mode where it comes from a folder.

    Raises:
        ArgumentError: no process group, more processes than rows, a model without layers or without
            parameters, other weights on other processes, or a folder that does not fit its
            configuration.
        RunError: the configuration of a folder is damaged, or has more layers than its weights.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ArgumentError(
            "sharded: expected several processes; start with torchrun and call "
            "torch.distributed.init_process_group first, or give Problem the model itself"
        )
    rank, count = dist.get_rank(), dist.get_world_size()
    folder = None if isinstance(model, nn.Module) else WeightsFolder(model)
    whole: Any = model if folder is None else folder.empty_model()
    named = dict(whole.named_parameters())
    _check(whole, named, count)
    place = torch.device(device or _place(None if folder else next(iter(named.values())).device))
    _check_alike(folder.digest() if folder else _sums(named))
    mesh = init_device_mesh(place.type, (count,))
    names = names_of(whole)
    new = {}
    for parameter in named.values():
        if not parameter.ndim and folder is None:
            continue
        owner = rank if parameter.ndim else 0  # a number is held by all, as FSDP2 would leave it
        cut = Cut(shape=tuple(parameter.shape), rank=owner, count=count)
        if folder is None:
            rows = cut.part(parameter.detach()).clone()
        else:
            rows = folder.rows(names[id(parameter)], cut, dtype).to(place)
        new[id(parameter)] = _parameter(rows, parameter, mesh)
    for module in whole.modules():
        for name, value in module._parameters.items():
            module._parameters[name] = new.get(id(value), value)
    if folder is not None:
        folder.fill_buffers(whole, place)
        whole.eval()
    return whole


def _check(model: nn.Module, named: dict[str, Tensor], count: int) -> None:
    most = max((p.shape[0] if p.ndim else 1 for p in named.values()), default=0)
    if any(isinstance(p, DTensor) for p in named.values()):
        raise ArgumentError("model: it is sharded already; give it to Problem as it is")
    if count > most:
        raise ArgumentError(
            f"model: {count} processes, but no parameter has more rows than {most}, so that some "
            f"would hold nothing; start {most} at most"
        )
    parts_of(model)


def _parameter(rows: Tensor, parameter: Tensor, mesh: Any) -> nn.Parameter:
    if not parameter.ndim:
        return nn.Parameter(rows.reshape(()), requires_grad=parameter.requires_grad)
    strides = torch.empty(parameter.shape, device="meta").stride()
    made = DTensor.from_local(
        rows, mesh, [Shard(0)], run_check=False, shape=parameter.shape, stride=strides
    )
    return nn.Parameter(made, requires_grad=parameter.requires_grad)


def _place(of: torch.device | None) -> torch.device:
    if of is not None:
        return of
    return torch.device(
        f"cuda:{torch.cuda.current_device()}" if dist.get_backend() == "nccl" else "cpu"
    )


def _sums(named: dict[str, Tensor]) -> str:
    return repr([(name, float(p.detach().double().sum())) for name, p in named.items()])


def _check_alike(digest: str) -> None:
    """Make sure that all processes were given the same weights."""
    digests: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    other = next((rank for rank, one in enumerate(digests) if one != digests[0]), None)
    if other is not None:
        raise ArgumentError(
            f"model: processes 0 and {other} hold different weights; load the same model in each"
        )
