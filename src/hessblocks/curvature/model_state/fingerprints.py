"""Fingerprint a model without its weights: modules, hooks, attributes, variables of its functions.

A cached graph is out of date once the model changes. `forward` reads more than weights: numbers and
flags, tensors that are no buffers, a configuration, global and closure variables. A breadth-first
walk visits all of these. It does not see files or environment variables.

Tensors are compared by checksums, which detect writes through `.data` and permutations. A checksum
is a weighted sum of the entries: each column of a row of 4,096 entries has a fixed random weight,
and so has each row. It reads a tensor once, like a sum.
"""

import functools
import math
import sys
import types
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

LIMIT = 4000
"""Largest number of visited objects besides modules, which limits the time to a few ms."""

WIDTH = 4096
"""Entries per row of a checksum."""
ROWS = 1024
"""Rows that are cast at a time, in dtypes other than float32 and float64."""

PLAIN = frozenset(
    (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
)
"""Types of immutable values, which are stored in the fingerprint."""

HOOKS = tuple(name for name in vars(nn.Module()) if "hooks" in name and "state_dict" not in name)
"""Names of a module's dictionaries of hooks."""

INTERNAL = frozenset(vars(nn.Module()))
"""Attributes that every module has, among them `training`, which each pass sets."""

_EVERYWHERE = tuple(name for name in vars(torch_module) if name.startswith("_global_"))
_WRAPPED = ("__func__", "__self__", "func", "args", "keywords", "fget")
"""Attributes of methods, partials and properties that hold functions and arguments."""
_CLASS_NOISE = frozenset(("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__"))

Fingerprint = tuple[Any, ...]


def fingerprint_of(*roots: Any) -> Fingerprint:
    """Fingerprint a model without the values of its parameters and buffers.

    Args:
        roots: a module first, then other objects, such as a loss.

    Returns:
        Tuple that is equal for two walks if nothing changed between them.
    """
    return _Walk(roots[0]).over(roots)


class _Same:
    """Compares an object by identity; holds a reference, so that its `id` is not reused."""

    __slots__ = ("it",)

    def __init__(self, it: object) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)


class _Walk:
    """One breadth-first walk over a model."""

    def __init__(self, model: nn.Module) -> None:
        weights = [*model.parameters(), *model.buffers()]
        self._own = {id(tensor) for tensor in weights}
        self._places = {id(tensor): place for place, tensor in enumerate(weights)}
        self._waiting: deque[Any] = deque()
        self._found: list[Any] = []
        self._tensors: list[Tensor] = []
        self._walked = 0

    def over(self, roots: Iterable[Any]) -> Fingerprint:
        self._add(*roots)
        self._add(*(vars(torch_module)[name] for name in _EVERYWHERE))
        while self._waiting:
            self._enter(self._waiting.popleft())
        return (*self._found, checksums(self._tensors))

    def _add(self, *values: Any) -> None:
        """Record plain values themselves, and other objects by the order of their first visit."""
        for value in values:
            kind = type(value)
            if kind in PLAIN:
                self._found += (kind, value)
                continue
            place = self._places.get(id(value))
            if place is None:
                place = self._places[id(value)] = len(self._places)
                self._waiting.append(value)
            self._found.append(place)

    def _enter(self, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._module(value)
            return
        self._walked += 1
        if self._walked > LIMIT:
            self._found.append(_Same(value))
            return
        way = next((way for kinds, way in _WAYS if isinstance(value, kinds)), _Walk._object)
        way(self, value)

    def _module(self, module: nn.Module) -> None:
        self._add(type(module), type(module).forward)
        own = vars(module)
        for register in ("_parameters", "_buffers", "_modules"):
            for name, value in own[register].items():
                self._add(name, value)
                if id(value) in self._own:
                    self._found += (value.shape, value.dtype, value.requires_grad)
        for hooks in HOOKS:
            if own[hooks]:
                self._add(hooks)
                self._pairs(own[hooks])
        for name, value in own.items():
            if name not in INTERNAL:
                self._add(name, value)

    def _pairs(self, values: Mapping[Any, Any]) -> None:
        self._found.append(len(values))
        for name, value in values.items():
            self._add(name, value)

    def _tensor(self, tensor: Tensor) -> None:
        self._found += (tensor.shape, tensor.dtype, tensor.requires_grad, _Same(tensor))
        if not tensor.is_inference():
            self._found.append(tensor._version)
        if type(tensor) in (Tensor, nn.Parameter, nn.Buffer):
            self._tensors.append(tensor.detach())

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        values = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        self._found += (array.shape, array.dtype.str, zlib.crc32(values))

    def _several(self, values: Any) -> None:
        self._found += (type(values), len(values))
        if set(map(type, values)) <= PLAIN:  # long lists of numbers stay fast
            self._found += (tuple(map(type, values)), tuple(values))
        elif not isinstance(values, set | frozenset):
            self._add(*values)
        else:
            self._found.append(frozenset(map(_Same, values)))

    def _mapping(self, mapping: Any) -> None:
        if set(map(type, (*mapping, *mapping.values()))) <= PLAIN:  # as long vocabularies
            self._several([*mapping])
            self._several([*mapping.values()])
        else:
            self._pairs(mapping)
        self._add(type(mapping), *_state(mapping))

    def _function(self, function: types.FunctionType) -> None:
        self._found += (_Same(function), _Same(function.__code__))
        for cell in function.__closure__ or ():
            try:
                self._add(cell.cell_contents)
            except ValueError:  # a closure cell without a value
                self._found.append(None)
        self._add(function.__defaults__, function.__kwdefaults__, *_state(function))
        if not _is_library(function.__module__):
            self._globals(function)

    def _globals(self, function: types.FunctionType) -> None:
        """Record the global variables that a function reads, also as attributes of modules."""
        names = _names(function.__code__)
        for name in names:
            if name not in function.__globals__:
                continue
            value = function.__globals__[name]
            if not isinstance(value, types.ModuleType):
                self._add(value)
            elif not _is_library(value.__name__):
                self._add(*(vars(value)[one] for one in names if one in vars(value)))

    def _wrapper(self, value: Any) -> None:
        self._add(*(getattr(value, name) for name in _WRAPPED if hasattr(value, name)))

    def _class(self, kind: type) -> None:
        self._found.append(_Same(kind))
        for one in kind.__mro__:
            if not _is_library(one.__module__):
                for name, value in vars(one).items():
                    if name not in _CLASS_NOISE:
                        self._add(name, value)

    def _object(self, value: Any) -> None:
        held = tuple(_state(value))
        if not held:
            with suppress(TypeError, ValueError, BufferError):  # no buffer, or one that is closed
                view = memoryview(value)  # of an array.array, bytearray, mmap, ...
                self._found += (type(value), view.shape, view.format, zlib.crc32(view.tobytes()))
                return
        sharding = type(value).__module__.startswith("torch.distributed")  # changes in each pass
        # a problem holds the previous fingerprint: each walk would nest it once more
        alone = sharding or not held or getattr(type(value), "holds_fingerprint", False)
        if isinstance(value, Enum | Exception | types.ModuleType) or alone:
            self._found.append(_Same(value))
            return
        self._add(type(value), *held)


_WAYS: tuple[tuple[Any, Any], ...] = (
    (Tensor, _Walk._tensor),
    (dict, _Walk._mapping),
    ((list, tuple, deque, set, frozenset), _Walk._several),
    (types.FunctionType, _Walk._function),
    ((types.MethodType, functools.partial, property, staticmethod, classmethod), _Walk._wrapper),
    (type, _Walk._class),
    ((np.ndarray, np.generic), _Walk._array),
)


def _state(value: Any) -> Iterator[Any]:
    """List names and values of an object's attributes."""
    for name, held in getattr(value, "__dict__", {}).items():
        yield name
        yield held
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(vars(kind).get(name), types.MemberDescriptorType) and hasattr(
                value, name
            ):
                yield name
                yield getattr(value, name)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """List the names in a function's code, including those in nested functions."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return tuple(dict.fromkeys((*code.co_names, *(name for names in inner for name in names))))


@functools.lru_cache(maxsize=4096)
def _is_library(name: str | None) -> bool:
    """Tell whether a module is Python's, ours or installed; such modules count as constant."""
    root = (name or "builtins").partition(".")[0]
    if root in sys.stdlib_module_names or root == "hessblocks":
        return True
    if root == "__main__":
        return False
    file = Path(getattr(sys.modules.get(root), "__file__", None) or "")
    if {"site-packages", "dist-packages"} & set(file.parts):
        return True
    # `pip install --target FOLDER` lists a package's files in RECORD, an editable install does not
    lines = (
        line
        for folder in file.parents[:2]
        for record in folder.glob("*.dist-info/RECORD")
        for line in record.read_text(encoding="utf-8").splitlines()
    )
    return any(line.startswith((f"{root}/", f"{root}.py,")) for line in lines)


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
    whole = [len(flat) // WIDTH * WIDTH for flat in flats]
    ends = torch.cat([flat[end:] for flat, end in zip(flats, whole, strict=True)])
    ends = nn.functional.pad(ends, (0, -len(ends) % WIDTH))
    large = [flat[:end] for flat, end in zip(flats, whole, strict=True) if end]
    rows = torch.cat([_weighted(flat.view(-1, WIDTH)) for flat in (*large, ends)])
    found = float(rows.double() @ _weights(len(rows), torch.float64, rows.device))
    if math.isfinite(found) or all(bool(flat.isfinite().all()) for flat in flats):
        return found
    return _checksum([flat.nan_to_num(0.5, 1.5, -1.5) for flat in flats])  # masks hold −∞


def _weighted(rows: Tensor) -> Float[Tensor, " rows"]:
    """Compute the weighted sum of each row; cast dtypes other than float32 and float64."""
    if rows.dtype not in (torch.float32, torch.float64):
        wide = torch.float32 if rows.is_floating_point() else torch.float64
        if len(rows) > ROWS:
            return torch.cat([_weighted(some) for some in rows.split(ROWS)])
        rows = rows.to(wide)
    return rows @ _weights(WIDTH, rows.dtype, rows.device)


@functools.lru_cache(maxsize=64)
def _weights(count: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " count"]:
    draw = torch.Generator().manual_seed(0)
    sizes = torch.rand(count, generator=draw, dtype=torch.float64) + 0.5
    signs = torch.randint(0, 2, (count,), generator=draw) * 2 - 1
    return (signs * sizes).to(device, dtype)
