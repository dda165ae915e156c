"""Gather a sharded model's weights one layer at a time, so that no device holds all of them.

Large embeddings and unembeddings are computed from a slice of rows at a time.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._pytree import tree_flatten, tree_unflatten

from hessblocks.curvature.sharding.exchange import Cut, Gather, Sums, all_or_none
from hessblocks.curvature.sharding.recomputed import Recomputed
from hessblocks.errors import ArgumentError, RunError

State = Callable[[nn.Module], AbstractContextManager[object]]
"""Maps a module to the context manager in which it is evaluated or differentiated."""


@dataclass(frozen=True)
class Held:
    """Sharded parameter, with the module and the attribute that hold it."""

    module: nn.Module
    name: str
    cut: Cut
    shard: Float[Tensor, "own ..."]


@dataclass(frozen=True, kw_only=True)
class Way:
    """Settings of a layerwise forward pass: the shards, and the contexts of recomputations."""

    shards: Mapping[int, Float[Tensor, "own ..."]]
    """This process's rows, by `id` of the parameter."""
    cuts: Mapping[int, Cut]
    """Cut of each parameter, by its `id`."""
    settled: State
    """Context in which a part is evaluated and differentiated; it restores the parameters."""
    again: State
    """Additional context when a part is recomputed after the model's forward pass."""

    def held(self, modules: Sequence[nn.Module]) -> list[Held]:
        """List the sharded parameters of these modules, without those of submodules."""
        return [
            Held(module, name, self.cuts[id(value)], self.shards[id(value)])
            for module in modules
            for name, value in module._parameters.items()
            if id(value) in self.cuts
        ]


def parts_of(model: nn.Module) -> list[nn.Module]:
    """List the modules that are gathered one at a time: layers, and modules outside of layers.

    Returns:
        Modules with parameters; none contains another.

    Raises:
        ArgumentError: a part that is no layer holds more than half of the parameters.
    """
    layers = set(_elements(model))
    parts = list(_beside(model, layers))
    total = _size(model)
    for part in parts:
        if part not in layers and _rows_of(part) is None and _size(part) > total / 2:
            raise ArgumentError(
                f"model: found no list of layers; {type(part).__name__} holds "
                f"{_size(part) / total:.0%} of the parameters and would be whole on every "
                "process; hold the layers in an nn.ModuleList"
            )
    return parts


def run_in_parts(model: nn.Module, way: Way) -> None:
    """Make each part of `model` gather its weights when it runs; call it in `evaluation_mode`."""
    parts = parts_of(model)
    without_hooks_of_fsdp(model)
    widest = max((_size(part) for part in parts if _rows_of(part) is None), default=0)
    inside = {id(module) for part in parts for module in part.modules()}
    for part in parts:
        rows = _rows_of(part)
        if rows is None or _size(part) <= widest:
            part.forward = functools.partial(_whole_part, part, part.forward, way)
        else:
            pieces = math.ceil(_size(part) / max(widest, 1))
            part.forward = functools.partial(rows, part, way, pieces)
    left = way.held([module for module in model.modules() if id(module) not in inside])
    shards = [one.shard for one in left]
    wholes = Gather.apply([one.cut for one in left], Sums(), *shards) if left else ()
    for one, whole in zip(left, wholes, strict=True):
        one.module._parameters[one.name] = whole


def _elements(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        listed = isinstance(module, nn.ModuleList | nn.Sequential)
        if listed and not isinstance(child, nn.ModuleList | nn.Sequential):
            yield child
        else:
            yield from _elements(child)


def _beside(module: nn.Module, layers: set[nn.Module]) -> Iterator[nn.Module]:
    """List the layers, and the largest modules with parameters that contain no layer."""
    for child in module.children():
        if child in layers or not any(inner in layers for inner in child.modules()):
            if next(child.parameters(), None) is not None:
                yield child
        else:
            yield from _beside(child, layers)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def without_hooks_of_fsdp(model: nn.Module) -> None:
    """Remove FSDP2's hooks, whose all-gather can be differentiated only once."""
    for module in model.modules():
        for register in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(register.items()):
                owner = type(getattr(hook, "__self__", None))
                if owner.__module__.startswith("torch.distributed.fsdp"):
                    del register[key]


class _Part:
    """Module call, as a function of the module's sharded parameters and its tensor arguments."""

    def __init__(
        self, module: nn.Module, forward: Callable[..., Any], way: Way, arguments: Any
    ) -> None:
        self._module, self._forward, self._way = module, forward, way
        self.form: Any = None
        self.sums = Sums()
        self.results: list[Any] = []
        self.held = way.held(list(module.modules()))
        leaves, self._structure = tree_flatten(arguments)
        self._places = [
            place
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        self.given = [leaves[place] for place in self._places]
        self._leaves = [
            None if place in self._places else leaf for place, leaf in enumerate(leaves)
        ]

    @contextmanager
    def settled(self) -> Iterator[None]:
        with self._way.settled(self._module):
            without_hooks_of_fsdp(self._module)
            yield

    def __call__(self, *tensors: Tensor, again: bool = False) -> tuple[Tensor, ...]:
        count = len(self.held)
        cuts = [one.cut for one in self.held]
        wholes = Gather.apply(cuts, self.sums, *tensors[:count]) if count else ()
        for one, whole in zip(self.held, wholes, strict=True):
            one.module._parameters[one.name] = whole
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors[count:], strict=True):
            leaves[place] = tensor
        arguments, keywords = tree_unflatten(leaves, self._structure)
        with self._way.again(self._module) if again else nullcontext():
            before = _tensors_in_attributes(self._module)
            self.results, self.form = tree_flatten(self._forward(*arguments, **keywords))
            if _tensors_in_attributes(self._module) - before:
                raise RunError(
                    f"model: {type(self._module).__name__} leaves a tensor in an attribute, where "
                    "another layer may read it, so that layers cannot be computed one at a time; "
                    "return it instead"
                )
        floating = tuple(leaf for leaf in self.results if _floats(leaf))
        self.results = [_FLOAT if _floats(leaf) else leaf for leaf in self.results]
        return floating


_FLOAT = object()
"""Placeholder for a floating-point result, which `Recomputed` returns."""


def _floats(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _whole_part(
    module: nn.Module, forward: Callable[..., Any], way: Way, *arguments: Any, **keywords: Any
) -> Any:
    """Run a module with gathered weights, and free them afterwards."""
    part = _Part(module, forward, way, (arguments, keywords))
    shards = [one.shard for one in part.held]
    with all_or_none(shards[0].device):
        found = iter(Recomputed.apply(part, *shards, *part.given))
    leaves = [next(found) if leaf is _FLOAT else leaf for leaf in part.results]
    return tree_unflatten(leaves, part.form)


def _tensors_in_attributes(module: nn.Module) -> set[int]:
    return {id(value) for one in module.modules() for value in vars(one).values() if _floats(value)}


class _Rows:
    """Slice of a weight: local rows `start` to `stop` of every process, gathered."""

    def __init__(self, cut: Cut, start: int, stop: int) -> None:
        self.start, self.stop, self.each, self._count = start, stop, cut.each, cut.count
        self.sums = Sums()

    def settled(self) -> AbstractContextManager[object]:
        return nullcontext()

    def gathered(self, *shards: Tensor) -> tuple[Tensor, ...]:
        """All-gather the slice of each parameter, as (P, rows, ...)."""
        step = self.stop - self.start
        wholes, cuts = [], []
        for shard in shards:
            missing = self.each - shard.shape[0]  # the last processes may have fewer rows
            padded = F.pad(shard, (*(0, 0) * (shard.ndim - 1), 0, missing)) if missing else shard
            wholes.append(padded[self.start : self.stop])
            shape = (self._count * step, *shard.shape[1:])
            cuts.append(Cut(shape=shape, rank=0, count=self._count))
        return tuple(
            whole.unflatten(0, (self._count, step))
            for whole in Gather.apply(cuts, self.sums, *wholes)
        )


class _LookedUp(_Rows):
    """Embedding lookup of the indices in these rows; zeros for other indices."""

    def __init__(self, *arguments: Any, indices: Tensor, padding: int | None) -> None:
        super().__init__(*arguments)
        self._indices, self._padding = indices, padding

    def __call__(self, *tensors: Tensor, again: bool = False) -> tuple[Tensor, ...]:
        (rows,) = self.gathered(*tensors)
        process, place = self._indices // self.each, self._indices % self.each - self.start
        here = (place >= 0) & (place < self.stop - self.start)
        found = rows[process, place.clamp(0, self.stop - self.start - 1)]
        found = torch.where(here[..., None], found, 0)
        if self._padding is not None:
            found = torch.where((self._indices == self._padding)[..., None], found.detach(), found)
        return (found,)


class _Unembedded(_Rows):
    """Logits of the classes in these rows, (..., P, rows)."""

    def __call__(self, *tensors: Tensor, again: bool = False) -> tuple[Tensor, ...]:
        hidden, *shards = tensors
        weight, *bias = self.gathered(*shards)
        logits = F.linear(hidden, weight.flatten(0, 1), *(one.flatten() for one in bias))
        return (logits.unflatten(-1, weight.shape[:2]),)


def _look_up(module: nn.Embedding, way: Way, pieces: int, indices: Tensor) -> Tensor:
    (held,) = way.held([module])
    with all_or_none(indices.device):
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < held.cut.rows:
            raise IndexError("index out of range in self")
    found: Tensor | None = None
    for some in _pieces(held.cut, pieces):
        rows = _LookedUp(held.cut, *some, indices=indices, padding=module.padding_idx)
        (piece,) = Recomputed.apply(rows, held.shard)
        found = piece if found is None else found + piece
    assert found is not None
    return found


def _unembed(module: nn.Linear, way: Way, pieces: int, hidden: Tensor) -> Tensor:
    held = way.held([module])
    cut = held[0].cut
    shards = [one.shard for one in held]
    found = [
        Recomputed.apply(_Unembedded(cut, *some), hidden, *shards)[0]
        for some in _pieces(cut, pieces)
    ]
    return torch.cat(found, dim=-1).flatten(-2)[..., : cut.rows]


def _pieces(cut: Cut, pieces: int) -> Iterator[tuple[int, int]]:
    step = math.ceil(cut.each / pieces)
    for start in range(0, cut.each, step):
        yield start, min(start + step, cut.each)


def _rows_of(module: nn.Module) -> Callable[..., Tensor] | None:
    """Return the function that runs a module on a slice of rows at a time; None if none can."""
    if "weight" not in module._parameters:  # it may be computed from other parameters
        return None
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return _unembed
    if isinstance(module, nn.Embedding) and type(module).forward is nn.Embedding.forward:
        special = module.max_norm is not None or module.sparse or module.scale_grad_by_freq
        return None if special else _look_up
    return None
