"""Shard a model by rows over the processes of torchrun, and read the shards of a model."""

import hashlib
import inspect
from importlib.metadata import version
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from hessblocks.curvature.sharding.exchange import Cut, check_alike
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

    Every process stores ⌈rows / processes⌉ rows of each parameter. `Problem` then gathers one layer
    at a time, and large embeddings a slice of rows at a time. The model is only for curvature: its
    own forward pass does not gather weights.

    Args:
        model: a module, whose parameters are replaced in place; or a folder with `config.json` and
            safetensors, from which every process reads only its rows.
        dtype: dtype of the parameters of a folder; None: the files' dtype.
        device: device for a folder's tensors; None: this process's GPU under nccl, else the CPU.

    Returns:
        The model; in evaluation mode if it was read from a folder.

    Raises:
        ArgumentError: no process group, more processes than rows, a model without layers or without
            parameters, different weights on different processes, or a folder that does not fit its
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
    if device is None and folder is None:
        device = next(iter(named.values())).device
    nccl = dist.get_backend() == "nccl"
    place = torch.device(device or (f"cuda:{torch.cuda.current_device()}" if nccl else "cpu"))
    digest = folder.digest() if folder else _sums(named)
    check_alike("model", "weights", digest, "load the same model in each")
    mesh = init_device_mesh(place.type, (count,))
    names = names_of(whole)
    new = {}
    for parameter in named.values():
        if not parameter.ndim and folder is None:
            continue
        owner = rank if parameter.ndim else 0  # FSDP2 replicates a scalar on all processes
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


def _sums(named: dict[str, Tensor]) -> str:
    return repr([(name, float(p.detach().double().sum())) for name, p in named.items()])


def cuts_of(model: nn.Module) -> dict[str, Cut]:
    """Read the cut of every parameter, by name; empty if the model is not sharded.

    A model counts as sharded if any of its parameters is (FSDP2, `sharded`). Derivatives then treat
    the other parameters as sharded too, so that one process owns each entry of a vector.

    Returns:
        The cuts, frozen parameters included.

    Raises:
        ArgumentError: a parameter is sharded along columns, or over other processes than the
            default group's.
    """
    for module in model.modules():
        if _is_fsdp(module):
            module.reshard()  # type: ignore[operator]
    named = dict(model.named_parameters())
    cut = {name: p for name, p in named.items() if isinstance(p, DTensor)}
    if not cut:
        return {}
    count = dist.get_world_size()
    for name, parameter in cut.items():
        size = parameter.device_mesh.size()
        if parameter.device_mesh.ndim != 1 or size != count:
            raise ArgumentError(
                f"model: {name!r} is sharded over a mesh of {tuple(parameter.device_mesh.shape)}, "
                f"but the process group has {count}; start as many processes as the mesh has, in "
                "one dimension"
            )
        if tuple(parameter.placements) != (Shard(0),):
            raise ArgumentError(
                f"model: {name!r} is sharded as {parameter.placements}, expected rows, Shard(0), "
                "as fully_shard gives them; leave tensor parallelism out"
            )
    return {
        name: Cut(shape=tuple(p.shape), rank=dist.get_rank(), count=count)
        for name, p in named.items()
    }


def own_rows(parameter: Shaped[Tensor, "..."], cut: Cut) -> Shaped[Tensor, "own ..."]:
    """Return this process's rows, sharing memory with the parameter."""
    held: Any = parameter.detach()
    local: Tensor = held.to_local() if isinstance(held, DTensor) else cut.part(held)
    return local


def is_whole(parameter: Shaped[Tensor, "..."]) -> bool:
    """Tell whether every process holds the whole model."""
    return not isinstance(parameter, DTensor)


def code_of(model: nn.Module) -> str:
    """Hash the code that all processes of a sharded model must share.

    Returns:
        Hash of classes and their `forward`, of names, shapes and dtypes, and of library versions.
    """
    kinds = {type(module).__qualname__: type(module).forward for module in model.modules()}
    seen = [
        (torch.__version__, version("transformers")),
        [(name, p.shape, p.dtype, p.requires_grad) for name, p in model.named_parameters()],
        [(name, _source(forward)) for name, forward in kinds.items()],
    ]
    return hashlib.sha256(repr(seen).encode()).hexdigest()


def _source(function: object) -> str:
    try:
        return inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):  # defined at run time
        return ""


def _is_fsdp(module: nn.Module) -> bool:
    return any(
        kind.__module__.startswith("torch.distributed.fsdp") for kind in type(module).__mro__
    )
