"""Undo the writes of a forward pass into its model, one thread at a time.

Small buffers and tensor attributes are copied for each pass. Weights and large tensors are compared
before and after the first pass. Later passes copy those that were written, and check the version
counters of the others.
"""

import copy
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from hessblocks.curvature.model_state.fingerprints import HOOKS, INTERNAL, PLAIN
from hessblocks.errors import RunError

SMALL = 1 << 16
"""Tensors of up to this many bytes are copied for each pass."""

_CONTAINERS = (dict, OrderedDict, defaultdict, list, deque)
_ORDINARY = (Tensor, nn.Parameter, nn.Buffer)


_REGISTERS = ("_parameters", "_buffers", "_modules", *HOOKS)
"""Dictionaries of a module: parameters, buffers, submodules and hooks; transformers adds some."""

Attributes = list[tuple[nn.Module, dict[str, Any], dict[str, dict[str, Any]]]]


def _attributes_of(model: nn.Module) -> Attributes:
    """List each module with copies of its attributes and of its dictionaries."""
    found = [(module, dict(vars(module))) for module in model.modules()]
    return [(module, own, {name: dict(own[name]) for name in _REGISTERS}) for module, own in found]


def _restore(attributes: Attributes) -> None:
    """Restore each module's attributes; none is missing meanwhile, since other threads may read."""
    for module, own, registers in attributes:
        _refill(vars(module), own)
        for name, content in registers.items():
            _refill(vars(module)[name], content)


_lock = threading.Lock()
_locks = WeakIdKeyDictionary()


@contextmanager
def exclusive(model: nn.Module) -> Iterator[None]:
    """Hold the lock of this model; wait until no other thread holds it."""
    with _lock:
        if model not in _locks:
            _locks[model] = threading.RLock()
        own = _locks[model]
    with own:
        yield


class Writes:
    """Record of the tensors that a model's forward pass writes in place, by name."""

    def __init__(self) -> None:
        """Start with an empty record."""
        self.known: dict[str, bool] = {}
        self.inside = 0
        """Depth of nested passes; only the outermost saves and restores values."""
        self.merges: bool | None = None
        """Whether `eval()` writes values, as in layers that merge weights; None: unknown."""

    @property
    def written(self) -> list[str]:
        """List the names of the tensors that a pass writes."""
        return [name for name, is_written in self.known.items() if is_written]


_WRITES = WeakIdKeyDictionary()


def writes_of(model: nn.Module) -> Writes:
    """Return the record of a model."""
    found: Writes | None = _WRITES.get(model)
    if found is None:
        found = _WRITES[model] = Writes()
    return found


def forget_writes(model: nn.Module) -> None:
    """Delete the record of a model that has changed."""
    _WRITES.pop(model, None)


class WriteProtection:
    """Saves the values of one model before a pass, and restores them afterwards."""

    def __init__(self, model: nn.Module) -> None:
        """Save the values that a pass may write; nothing is replaced yet."""
        self._model, self.writes = model, writes_of(model)
        self._copies: dict[int, Any] = {}
        self._contents: list[tuple[Any, Any]] = []
        self._aside: dict[int, tuple[str, Tensor, Tensor | None, int]] = {}
        for name, holder, key in _places(model) if not self.writes.inside else ():
            tensor = holder[key]
            if id(tensor) not in self._aside and self._watched(name, tensor):
                fresh = self.writes.known.get(name) is not False
                kept = tensor.detach().clone() if fresh else None
                self._aside[id(tensor)] = (name, tensor, kept, tensor._version)
        self.writes.inside += 1

    def settle(self) -> None:
        """Enter evaluation mode; if `eval()` writes values, only set the `training` flags."""
        if not any(module.training for module in self._model.modules()):
            return
        before = _attributes_of(self._model)
        if not self.writes.merges:
            self._model.eval()
        if self.writes.merges is None:
            self.writes.merges = bool(self._put_back())
        if self.writes.merges:
            _restore(before)
            for module in self._model.modules():
                module.training = False

    def copy_in(self) -> None:
        """Replace tensors that a pass may write by copies; the caller restores the attributes."""
        for name, holder, key in _places(self._model):
            holder[key] = self._copied(name, holder[key])

    def put_back(self) -> None:
        """Restore all values.

        Raises:
            RunError: the pass wrote trained weights; they are restored before.
        """
        self.writes.inside -= 1
        for container, content in self._contents:
            _refill(container, content)
        for name in self._put_back():
            parameter = dict(self._model.named_parameters()).get(name)
            if parameter is not None and parameter.requires_grad:
                raise RunError(self._sentence(name))

    def _put_back(self) -> list[str]:
        """Restore saved values; return the names of tensors that had changed."""
        changed = []
        for name, tensor, kept, version in self._aside.values():
            moved = tensor._version != version
            if kept is None:
                if moved:
                    raise RunError(
                        f"{self._sentence(name)}; it did not in the first pass, so that its values "
                        "are not kept"
                    )
                continue
            differs = not _same(tensor, kept)
            self.writes.known[name] = moved or differs or self.writes.known.get(name, False)
            if differs:
                # through `.data`, which changes neither the graph nor the version counter
                tensor.data.copy_(kept)
                changed.append(name)
        return changed

    def _sentence(self, name: str) -> str:
        owner = self._model.get_submodule(name.rpartition(".")[0])
        bound = getattr(owner, "max_norm", None) is not None
        advice = (
            "max_norm scales the rows that are looked up; call the model once on these batches "
            "before, which leaves nothing to scale, or set max_norm=None"
            if bound
            else "write it outside of forward"
        )
        return (
            f"model: its forward pass writes other values into {name!r} of {type(owner).__name__}, "
            f"which derivatives are taken by; {advice}"
        )

    def _watched(self, name: str, tensor: Any) -> bool:
        """Tell whether a tensor is not copied, but saved for comparison or checked by version."""
        if type(tensor) not in _ORDINARY or tensor.is_inference() or tensor.is_meta:
            return False
        if tensor.layout != torch.strided or (tensor.grad_fn is not None):
            return False
        if not _is_constant(tensor):
            return True
        large = type(tensor) is nn.Parameter or tensor.nbytes > SMALL
        return large and not self.writes.known.get(name)

    def _copied(self, name: str, value: Any) -> Any:
        """Copy a tensor that a pass may write; replace such tensors inside of a container."""
        if not isinstance(value, Tensor) and type(value) not in _CONTAINERS:
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = value
            if not isinstance(value, Tensor):
                self._contents.append((value, copy.copy(value)))
                self._fill(name, value)
            elif self._is_own(name, value):
                self._copies[id(value)] = value.detach().clone()
        return self._copies[id(value)]

    def _is_own(self, name: str, tensor: Tensor) -> bool:
        """Tell whether each pass uses a copy of this tensor."""
        small = type(tensor) is not nn.Parameter and tensor.nbytes <= SMALL
        written = self.writes.known.get(name, False)
        return type(tensor) in _ORDINARY and _is_constant(tensor) and (small or written)

    def _fill(self, name: str, container: Any) -> None:
        """Replace a container's tensors by copies."""
        items = [*(container.items() if isinstance(container, dict) else enumerate(container))]
        if {type(value) for _, value in items} <= PLAIN:  # long lists of numbers stay fast
            return
        for key, value in items:
            container[key] = self._copied(f"{name}[{key!r}]", value)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Enter evaluation mode; on exit, restore all modules' attributes and values.

    Attributes that were assigned and values that were written in place are both restored.

    Raises:
        RunError: trained weights were written; they are restored.
    """
    before, values = _attributes_of(model), WriteProtection(model)
    try:
        values.copy_in()
        values.settle()
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                module.sparse = False  # autograd can differentiate dense gradients again
        yield
    finally:
        _restore(before)
        values.put_back()


def _places(model: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """List name, dictionary and key of each parameter, buffer and ordinary attribute."""
    for path, module in model.named_modules():
        own: dict[str, Any] = vars(module)
        plain = [name for name in own if name not in INTERNAL]
        registers = (own["_parameters"], own["_buffers"])
        for holder, names in (*((one, [*one]) for one in registers), (own, plain)):
            for name in names:
                yield f"{path}.{name}" if path else name, holder, name


def _is_constant(tensor: Tensor) -> bool:
    """Tell whether a tensor needs no gradient, so that a copy can replace it."""
    return not tensor.requires_grad and not tensor.is_inference() and not tensor.is_meta


def _same(one: Tensor, other: Tensor) -> bool:
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and torch.equal(one.nan_to_num(), other.nan_to_num())


def _refill(container: Any, content: Any) -> None:
    """Restore a container's content and order."""
    mapping = isinstance(container, dict)
    if not mapping or [*container][: len(content)] != [*content]:
        container.clear()
    if not mapping:
        container.extend(content)
        return
    container.update(content)
    for name in [*container][len(content) :]:
        del container[name]
