"""Undo the writes of a forward pass into its model.

Buffers and tensor attributes are copied for each pass. The version counters of the parameters are
checked after it. `unwritten` compares their values too, which also detects writes through `.data`.
"""

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hessblocks.curvature.model_state.form import INTERNAL, PLAIN, REGISTERS
from hessblocks.errors import RunError

_CONTAINERS = (dict, OrderedDict, defaultdict, list, deque)
_ORDINARY = (Tensor, nn.Parameter, nn.Buffer)


Attributes = list[tuple[nn.Module, dict[str, Any], dict[str, dict[str, Any]]]]


def _attributes_of(model: nn.Module) -> Attributes:
    """List each module with copies of its attributes and of its dictionaries."""
    pairs = [(module, dict(vars(module))) for module in model.modules()]
    return [
        (module, values, {name: dict(values[name]) for name in REGISTERS if values[name]})
        for module, values in pairs
    ]


def _restore(attributes: Attributes) -> None:
    """Restore each module's attributes; none is missing meanwhile, since other threads may read."""
    for module, values, registers in attributes:
        _refill(vars(module), values)
        for name in REGISTERS:
            if values[name] or name in registers:
                _refill(values[name], registers.get(name, {}))


@contextmanager
def unwritten(model: nn.Module) -> Iterator[None]:
    """Check on exit that no parameter was written; restore those that were.

    Raises:
        RunError: a parameter has other values than before; they are restored.

    Cost: a copy of all parameters.
    """
    before = [(name, p, _copy(p)) for name, p in model.named_parameters() if _has_values(p)]
    try:
        yield
    finally:
        if changed := _put_back(before):
            raise RunError(_sentence(model, changed[0]))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[Sequence[nn.Module]]:
    """Enter evaluation mode; on exit, restore all modules' attributes and values.

    Attributes that were assigned, and buffers and tensor attributes that were written in place, are
    restored. `eval()` may not change parameters: layers that merge weights then stay unmerged.

    Yields:
        All modules, each once.

    Raises:
        RunError: parameters were written. Rows that `max_norm` has scaled are restored.
    """
    before, copies = _attributes_of(model), _Copies()
    modules = [module for module, *_ in before]
    lookups = [module for module in modules if isinstance(module, _LOOKUPS)]
    bounded = {id(lookup.weight) for lookup in lookups if lookup.max_norm}
    parameters = [(name, p) for name, p in model.named_parameters() if _has_values(p)]
    scaled = [(name, p, _copy(p)) for name, p in parameters if id(p) in bounded]
    others = [(name, p, p._version) for name, p in parameters if id(p) not in bounded]
    try:
        copies.put_in(modules)
        _settle(model, modules)
        for lookup in lookups:
            lookup.sparse = False  # autograd can differentiate dense gradients again
        yield modules
    finally:
        _restore(before)
        copies.empty()
        changed = _put_back(scaled)
        changed += [name for name, p, version in others if p._version != version]
        if changed:
            raise RunError(_sentence(model, changed[0]))


_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)


def _settle(model: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Enter evaluation mode; if `eval()` writes parameters, only set the `training` flags."""
    if all((type(m).train, type(m).eval) == (nn.Module.train, nn.Module.eval) for m in modules):
        for module in modules:
            module.training = False
    elif any(module.training for module in modules):
        attributes = _attributes_of(model)
        values = [(name, p, _copy(p)) for name, p in model.named_parameters() if _has_values(p)]
        model.eval()
        if _put_back(values):
            _restore(attributes)
            for module in modules:
                module.training = False


class _Copies:
    """Copies of the tensors that one pass may write."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}
        self._contents: list[tuple[Any, Any]] = []

    def put_in(self, modules: Sequence[nn.Module]) -> None:
        """Replace buffers and tensor attributes by copies; the caller restores the attributes."""
        for module in modules:
            attributes, buffers = vars(module), module._buffers
            own = [name for name in attributes if name not in INTERNAL]
            buffers.update({name: self._copied(tensor) for name, tensor in buffers.items()})
            attributes.update({name: self._copied(attributes[name]) for name in own})

    def empty(self) -> None:
        """Restore the content of containers."""
        for container, content in self._contents:
            _refill(container, content)

    def _copied(self, value: Any) -> Any:
        """Copy a tensor that a pass may write; replace such tensors inside of a container."""
        if not isinstance(value, Tensor) and type(value) not in _CONTAINERS:
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = value
            if not isinstance(value, Tensor):
                self._contents.append((value, copy.copy(value)))
                self._fill(value)
            elif type(value) in _ORDINARY and not (value.requires_grad or value.is_inference()):
                self._copies[id(value)] = value.detach().clone()
        return self._copies[id(value)]

    def _fill(self, container: Any) -> None:
        """Replace a container's tensors by copies."""
        items = [*(container.items() if isinstance(container, dict) else enumerate(container))]
        if {type(value) for _, value in items} <= PLAIN:  # long lists of numbers stay fast
            return
        for key, value in items:
            container[key] = self._copied(value)


def _put_back(values: Iterable[tuple[str, Tensor, Tensor]]) -> list[str]:
    """Restore tensors from their copies; return the names of those that had changed."""
    changed = []
    for name, tensor, before in values:
        if not _same(tensor, before):
            # through `.data`, which changes neither the graph nor the version counter
            tensor.data.copy_(before)
            changed.append(name)
    return changed


def _sentence(model: nn.Module, name: str) -> str:
    owner = model.get_submodule(name.rpartition(".")[0])
    bound = getattr(owner, "max_norm", None) is not None
    advice = (
        "max_norm scales the rows that are looked up; call the model once on these batches "
        "before, which leaves nothing to scale, or set max_norm=None"
        if bound
        else "write it outside of forward"
    )
    return (
        f"model: its forward pass writes other values into {name!r} of {type(owner).__name__}, "
        f"a parameter; {advice}"
    )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _has_values(parameter: Tensor) -> bool:
    """Tell whether a parameter can be copied and has a version counter."""
    special = parameter.is_inference() or parameter.is_meta or parameter.layout != torch.strided
    return type(parameter) is nn.Parameter and not special


def _same(a: Tensor, b: Tensor) -> bool:
    # a sum of differences is three times as fast as `torch.equal`
    summable = a.dtype in (torch.float32, torch.float64)
    if (summable and not float((a.detach() - b).abs_().sum())) or torch.equal(a, b):
        return True
    return a.is_floating_point() and torch.equal(a.nan_to_num(), b.nan_to_num())


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
