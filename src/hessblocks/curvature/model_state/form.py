"""List what a model is: modules, hooks and attributes (its form), and checksums of its tensors.

`forward` reads more than weights. A form has the modules, their hooks and their attributes, down to
the attributes of plain objects in containers. Functions and classes count by identity: variables
that they read are not seen.

A checksum detects writes through `.data` and permutations. It is a weighted sum of the entries:
each column of a row of 4,096 entries has a fixed random weight, and so has each row. It reads a
tensor once, like a sum.
"""

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from hessblocks.curvature.model_state.lock import exclusive

DEPTH = 4
"""Largest depth of containers and objects below a module's dictionary."""
LONG = 1000
"""Containers with more entries count by identity and length."""
LIMIT = 4000
"""Largest number of objects whose content is listed, which limits the time to a few ms."""

PLAIN = frozenset(
    (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
)
"""Types of immutable values."""

_HOOKS = tuple(name for name in vars(nn.Module()) if "hooks" in name and "state_dict" not in name)

REGISTERS = ("_parameters", "_buffers", "_modules", *_HOOKS)
"""Dictionaries of a module: parameters, buffers, submodules and hooks; transformers adds some."""
_REGISTERED = frozenset(REGISTERS)

INTERNAL = frozenset(vars(nn.Module()))
"""Attributes that every module has, among them `training`, which each pass sets."""

Form = tuple[Any, ...]


class _Same:
    """Compares an object by identity; holds a reference, so that its `id` is not reused."""

    __slots__ = ("_object",)

    def __init__(self, value: object) -> None:
        self._object = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._object is other._object

    def __hash__(self) -> int:
        return id(self._object)


def form_of(model: nn.Module, *others: object) -> Form:
    """List the form of a model.

    Args:
        model: the model; values of its parameters and buffers are left out.
        others: other objects, such as a loss.

    Returns:
        Tuple that is equal for two calls if none of what it lists changed between them.
    """
    visited: set[int] = set()
    form: list[Any] = []

    def visit(value: Any, depth: int) -> None:
        if type(value) in PLAIN:
            form.extend((type(value), value))
            return
        form.append(_Same(value))
        if isinstance(value, Tensor):
            form.extend((value.shape, value.dtype, value.requires_grad))
            if id(value) not in weights and not value.is_inference():
                form.append(value._version)
        elif depth < DEPTH and id(value) not in visited and len(visited) < LIMIT:
            visited.add(id(value))
            content = _content(value)
            form.append(len(content))
            for inner in content if len(content) <= LONG else ():
                visit(inner, depth + 1)

    with exclusive(model):  # a pass in another thread replaces attributes meanwhile
        modules = [*model.modules()]
        held = (t for m in modules for t in (*m._parameters.values(), *m._buffers.values()))
        weights = {id(tensor) for tensor in held}
        for module in modules:
            form.extend((_Same(module), _Same(type(module)), _Same(type(module).forward)))
            for name, value in vars(module).items():
                if value if name in _REGISTERED else name not in INTERNAL:
                    form.append(name)
                    visit(value, 0)
        for other in others:
            for part in other.modules() if isinstance(other, nn.Module) else [other]:
                visit(vars(part) if isinstance(part, nn.Module) else part, 0)
    return tuple(form)


def _content(value: Any) -> Collection[Any]:
    """List keys and values of a container, or names and values of an object's attributes."""
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if not isinstance(value, Mapping):
        sharding = type(value).__module__.startswith("torch.distributed")  # changes in each pass
        plain = not (sharding or isinstance(value, nn.Module | type))
        value = getattr(value, "__dict__", {}) if plain else {}
    return [*value.keys(), *value.values()]


WIDTH = 4096
"""Entries per row of a checksum."""
ROWS = 1024
"""Rows that are cast at a time, in dtypes other than float32 and float64."""


def checksums(tensors: Iterable[Shaped[Tensor, "..."]]) -> tuple[float, ...]:
    """Compute one checksum per dtype and device; tensors without values are left out.

    Args:
        tensors: tensors of any shapes, dtypes and devices.

    Returns:
        Weighted sums of all entries, with different weights.

    Cost: as a sum of all entries.
    """
    alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if _has_values(tensor):
            alike.setdefault((tensor.dtype, tensor.device), []).append(_flat(tensor))
    with torch.no_grad():
        return tuple(_checksum(flats) for flats in alike.values())


def _has_values(tensor: Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return False
    return not tensor.numel() or tensor.untyped_storage().nbytes() > 0  # FSDP frees whole weights


def _flat(tensor: Tensor) -> Tensor:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.detach().reshape(-1)


def _checksum(flats: Sequence[Tensor]) -> float:
    cuts = [len(flat) // WIDTH * WIDTH for flat in flats]
    ends = torch.cat([flat[end:] for flat, end in zip(flats, cuts, strict=True)])
    ends = nn.functional.pad(ends, (0, -len(ends) % WIDTH))
    large = [flat[:end] for flat, end in zip(flats, cuts, strict=True) if end]
    rows = torch.cat([_weighted(flat.view(-1, WIDTH)) for flat in (*large, ends)])
    checksum = float(rows.double() @ _weights(len(rows), torch.float64, rows.device))
    if math.isfinite(checksum) or all(bool(flat.isfinite().all()) for flat in flats):
        return checksum
    return _checksum([flat.nan_to_num(0.5, 1.5, -1.5) for flat in flats])  # masks hold −∞


def _weighted(rows: Tensor) -> Float[Tensor, " rows"]:
    """Compute the weighted sum of each row; cast dtypes other than float32 and float64."""
    if rows.dtype not in (torch.float32, torch.float64):
        wide = torch.float32 if rows.is_floating_point() else torch.float64
        if len(rows) > ROWS:
            return torch.cat([_weighted(chunk) for chunk in rows.split(ROWS)])
        rows = rows.to(wide)
    return rows @ _weights(WIDTH, rows.dtype, rows.device)


@functools.lru_cache(maxsize=64)
def _weights(count: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " count"]:
    draw = torch.Generator().manual_seed(0)
    sizes = torch.rand(count, generator=draw, dtype=torch.float64) + 0.5
    signs = torch.randint(0, 2, (count,), generator=draw) * 2 - 1
    return (signs * sizes).to(device, dtype)
