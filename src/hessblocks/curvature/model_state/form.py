"""List what a model is besides its weights: modules, hooks, attributes.

`forward` reads more than weights. A form has the modules, their hooks and their attributes, down to
the attributes of plain objects in containers. Functions and classes count by identity: variables
that they read are not seen.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

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
    weights = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
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

    for module in model.modules():
        attributes = vars(module)
        form.extend((_Same(module), _Same(type(module)), _Same(type(module).forward)))
        for name, value in attributes.items():
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
        value = (
            {}
            if sharding or isinstance(value, nn.Module | type)
            else getattr(value, "__dict__", {})
        )
    return [*value.keys(), *value.values()]
