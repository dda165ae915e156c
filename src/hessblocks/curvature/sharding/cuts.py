"""Read how a model's parameters are sharded, and refuse ways that are not known here."""

from __future__ import annotations

import hashlib
import inspect
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from hessblocks.curvature.sharding.exchange import Cut
from hessblocks.errors import ArgumentError


def cuts_of(model: nn.Module) -> dict[str, Cut]:
    """Read the cut of every parameter, by name; nothing where the model is whole.

    A model counts as sharded when one of its parameters is (FSDP2, `sharded`). The others are then
    cut in the same way while derivatives are taken, so that every entry of a vector has one owner.

    Returns:
        The cuts, those of frozen parameters among them.

    Raises:
        ArgumentError: it is cut along columns, or over other processes than the default group's.
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
    """Tell whether every process holds all of it."""
    return not isinstance(parameter, DTensor)


def code_of(model: nn.Module) -> str:
    """Digest what processes must agree on to pass through a model together.

    Returns:
        A digest of classes and their forward passes, of names, shapes and dtypes, and of versions.
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
    except (OSError, TypeError):  # made at run time
        return ""


def _is_fsdp(module: nn.Module) -> bool:
    return any(
        kind.__module__.startswith("torch.distributed.fsdp") for kind in type(module).__mro__
    )
