"""Describe changes of weights: new values of parameters, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hessblocks.bill.edits import Edit, in_format
from hessblocks.curvature import (
    ParameterGroup,
    ParameterView,
    Problem,
    checksums,
    plain_model,
    plain_name,
    whole,
)
from hessblocks.errors import ArgumentError
from hessblocks.tensor_formats import Format

New = Float[Tensor, "..."] | Edit | Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
"""New value of a parameter: a tensor, an edit, or a function of the old tensor."""
Views = tuple[ParameterView, ...]
ALIKE = 1e-3
"""Largest difference of two checksums of Δ, relative to ‖Δ‖, that counts as round-off."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Change:
    """Change of weights; its new tensors are computed when needed.

    Examples:
        >>> import torch, hessblocks as hb
        >>> changes = hb.change_each(torch.nn.Linear(8, 4), hb.rounded(bits=3))
        >>> change = changes["weight, 3 bits"]
        >>> change.place, change.how, change.bits, change.size
        ('weight', '3 bits', 3.0, 32)
    """

    name: str
    """Unique name of the change."""
    place: str
    """Weight or group that is changed; changes of one place exclude each other."""
    how: str
    """Description of the edit, such as `3 bits`."""
    bytes: float | None
    """Bytes after rounding to nearest; None if the change does not round."""
    views: tuple[ParameterView, ...]
    """Entries that may change."""
    new: Mapping[str, New]
    """Parameter name → new value."""
    noted: dict[str, float] = field(default_factory=dict)
    """Parameter name → checksum of Δ when the change was first computed for a bill."""

    @property
    def size(self) -> int:
        """Number of entries that may change."""
        return sum(view.size for view in self.views)

    @property
    def bits(self) -> float | None:
        """Bits per entry after rounding; None if the change does not round."""
        return None if self.bytes is None else 8 * self.bytes / self.size

    @property
    def edit(self) -> Edit | None:
        """The one edit of all its weights; None if there is none, or several."""
        edits = {value if isinstance(value, Edit) else None for value in self.new.values()}
        return edits.pop() if len(edits) == 1 else None

    @property
    def format(self) -> Format | None:
        """Storage format of all its weights; None if there is none, or several."""
        return self.edit.format if self.edit else None

    def weighed(self, importance: Mapping[str, Float[Tensor, " width"]]) -> Change:
        """Let its format weigh errors by the mean squared inputs of its weights."""
        if self.format is None:
            return self
        edit = in_format(self.format, importance=importance)
        return replace(self, new=dict.fromkeys(self.new, edit))

    def made(
        self, parameters: Mapping[str, Float[Tensor, "..."]]
    ) -> Iterator[tuple[str, Float[Tensor, "..."]]]:
        """Compute the new tensors one at a time, in the dtype of the old ones.

        Args:
            parameters: old tensors, which are not modified.

        Yields:
            Name and new tensor.

        Raises:
            ArgumentError: a new value is not a tensor of real and finite numbers, or has another
                shape.
        """
        for name, value in self.new.items():
            old = parameters[name]
            tensor: Any = value
            if isinstance(value, Edit):
                views = [view for view in self.views if view.parameter == name]
                tensor = _edited(value, name, old, views)
            elif callable(value):
                tensor = value(old.clone())
            if not isinstance(tensor, Tensor) or tensor.is_complex():
                kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ArgumentError(
                    f"changes: {self.name!r}: {name!r}: expected a tensor of real numbers, got "
                    f"{kind}"
                )
            if tensor.shape != old.shape:
                raise ArgumentError(
                    f"changes: {self.name!r}: {name!r}: expected shape {tuple(old.shape)}, got "
                    f"{tuple(tensor.shape)}"
                )
            tensor = tensor.detach().to(old)
            if not tensor.isfinite().all():
                raise ArgumentError(
                    f"changes: {self.name!r}: {name!r} would become nan or infinite"
                )
            yield name, tensor

    def check_same(self, name: str, delta: Float[Tensor, "..."]) -> None:
        """Store the checksum of Δ at the first call, and compare with it at later calls.

        Raises:
            ArgumentError: the checksum differs.
        """
        (checksum,) = checksums([delta])
        far = abs(checksum - self.noted.setdefault(name, checksum))
        if far and far > ALIKE * float(delta.norm()):
            raise ArgumentError(
                f"changes: {self.name!r}: the change of {name!r} differs from the one that was "
                "priced; give a function without randomness, and price again after writing to "
                "tensors or models that it uses"
            )

    def relative_size(self, parameters: Mapping[str, Float[Tensor, "..."]]) -> float:
        """Compute the largest ‖Δ‖ / ‖w‖ over the parameters; 0 if nothing changes."""
        ratios = [0.0]
        for name, new in self.made(parameters):
            old, views = parameters[name], [v for v in self.views if v.parameter == name]
            before = sum(float(view.read(old[None]).double().square().sum()) for view in views)
            after = float((new.double() - old.double()).square().sum())
            ratios.append((after / before) ** 0.5 if before else float("inf") * bool(after))
        return max(ratios)


def _edited(edit: Edit, name: str, old: Tensor, views: Iterable[ParameterView]) -> Tensor:
    """Apply an edit to the viewed entries of a parameter; return the new tensor."""
    edited = old.clone(memory_format=torch.contiguous_format)
    for view in views:

        def cut(tensor: Tensor, view: ParameterView = view) -> Tensor:
            if tensor.shape != old.shape:
                raise ArgumentError(
                    f"other: {name!r}: expected shape {tuple(old.shape)} to merge with, got "
                    f"{tuple(tensor.shape)}"
                )
            return view.read(tensor[None])[0].view(view.shape)

        view.write(edited[None], edit.new(cut(old), name, cut).reshape(1, -1).to(old))
    return edited


def change_each(where: nn.Module | Mapping[str, ParameterGroup], *edits: Edit) -> dict[str, Change]:
    """Make one change for each weight matrix of a model, or each group, and each edit.

    Args:
        where: a model, whose matrices are its trainable parameters with two or more axes, without
            embeddings and parameters tied to them, which only formats round; or groups by name,
            from `parameter_groups` or `custom_groups`.
        edits: edits, such as `rounded(bits=3), rounded(bits=4)`.

    Returns:
        Changes by their name `PLACE, EDIT`, such as `layers.0.mlp.in, 3 bits`.

    Raises:
        ArgumentError: there is no edit, two edits have the same description, there is nothing
            to change, or a format fits no weight.

    Examples:
        >>> import hessblocks as hb
        >>> model = hb.build("pre-ln", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> mlp = hb.select_groups(hb.parameter_groups(model), ["*.mlp.*"])
        >>> for name in hb.change_each(mlp, hb.rounded(bits=3), hb.pruned(share=0.1)):
        ...     print(name)
        layers.0.mlp.in, 3 bits
        layers.0.mlp.in, 0.1 pruned
        layers.0.mlp.out, 3 bits
        layers.0.mlp.out, 0.1 pruned
    """
    places: dict[str, Views] = {}
    if isinstance(where, nn.Module):
        places = _matrices(where)
    elif isinstance(where, Mapping) and all(isinstance(g, ParameterGroup) for g in where.values()):
        places = {name: group.views for name, group in where.items()}
    right = all(isinstance(edit, Edit) for edit in edits)
    if right and isinstance(where, nn.Module) and any(edit.format for edit in edits):
        places |= _matrices(where, tables=True)
    if not edits or not places or not right:
        raise ArgumentError(
            "change_each: expected edits, such as hb.rounded(bits=3), and a model with matrices or "
            f"groups to make them in, got edits {[getattr(edit, 'how', edit) for edit in edits]} "
            f"and {len(places)} places"
        )
    if len(hows := {edit.how for edit in edits}) < len(edits):
        raise ArgumentError(
            f"change_each: expected edits with different names, got {len(edits)} edits with the "
            f"names {'; '.join(hows)}; call change_each once per edit, and rename the changes"
        )
    tables = _tables(where) if isinstance(where, nn.Module) else set()
    # a place must be the same in all formats
    siblings = [names for edit in edits if edit.format for names in edit.format.siblings]
    fitting = {edit.how: _fitting(edit, places, tables, siblings) for edit in edits}
    modules = where.modules() if isinstance(where, nn.Module) else ()
    if any(edit.format for edit in edits) and any(isinstance(m, Conv1D) for m in modules):
        raise ArgumentError(
            "change_each: this model (GPT-2) stores its weights transposed, which no storage "
            "format does; give hb.rounded instead"
        )
    changes = {}
    for place in dict.fromkeys(place for by_place in fitting.values() for place in by_place):
        for edit in edits:
            if views := fitting[edit.how].get(place):
                name = f"{place}, {edit.how}"
                new = dict.fromkeys((view.parameter for view in views), edit)
                changes[name] = _change(name, place, views, new)
    return changes


def _change(name: str, place: str, views: Views, new: Mapping[str, New]) -> Change:
    change = Change(name=name, place=place, how="changed", bytes=None, views=views, new=new)
    if (edit := change.edit) is None:
        return change
    size = sum(edit.bytes(view.shape) for view in views) if edit.bytes else None
    return replace(change, how=edit.how, bytes=size)


def _fitting(
    edit: Edit,
    places: Mapping[str, Views],
    tables: Collection[str],
    siblings: Iterable[Collection[str]],
) -> dict[str, Views]:
    """Select the places that an edit can be made in, and join those that its runtime fuses."""
    if edit.format is None or not edit.format.tables:
        places = {place: views for place, views in places.items() if place not in tables}
    if edit.format is None:
        return dict(places)
    fitting: dict[str, Views] = {}
    for place, views in places.items():
        parent, _, name = place.removesuffix(".weight").rpartition(".")
        fused = next((names for names in siblings if name in names), ())
        joined = [f"{parent}.{s}.weight" for s in fused if f"{parent}.{s}.weight" in places]
        if all(edit.format.fits(view.shape) for key in joined or [place] for view in places[key]):
            fitting[", ".join(joined) or place] = sum((places[key] for key in joined), ()) or views
    if not fitting:
        shapes = sorted({tuple(view.shape) for views in places.values() for view in views})
        raise ArgumentError(
            f"change_each: the format {edit.how} fits no weight; their shapes are {shapes}"
        )
    return fitting


def _matrices(model: nn.Module, *, tables: bool = False) -> dict[str, Views]:
    without = () if tables else _tables(model)
    return {
        name: (whole(name, p),)
        for name, p in plain_model(model, sharded=True).named_parameters()
        if p.requires_grad and p.ndim > 1 and name not in without
    }


def _tables(model: nn.Module) -> set[str]:
    """Names of the embeddings, and of the parameters tied to them."""
    model = plain_model(model, sharded=True)
    tables = {
        id(p)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for p in module.parameters(recurse=False)
    }
    return {name for name, p in model.named_parameters() if id(p) in tables}


def checked_changes(
    problem: Problem, changes: Iterable[Change] | Mapping[str, Change | Mapping[str, New]]
) -> tuple[Change, ...]:
    """Convert all forms of changes to `Change`, and check that they fit the model.

    Args:
        problem: problem whose model is changed.
        changes: name → mapping from parameter names to new tensors, or to functions of the old
            tensors; or the result of `change_each`.

    Returns:
        The changes.

    Raises:
        ArgumentError: there is no change, two have one name, or a parameter does not exist, is
            frozen, or is tied to another.
    """
    several: Any = changes if isinstance(changes, Iterable) else [changes]
    named = isinstance(several, Mapping)
    items: Any = several.items() if named else [(getattr(c, "name", None), c) for c in several]
    checked = tuple(
        replace(change, name=name, noted={})
        if isinstance(change, Change)
        else _own(problem, name, change)
        for name, change in items
    )
    names = [change.name for change in checked]
    if not checked or len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
        raise ArgumentError(
            f"changes: expected at least one, each with a name of its own, got {names!r:.80}"
        )
    parameters = problem.parameters
    for change in checked:
        for name in (name for name in change.new if name not in parameters):
            _check_parameter(problem, change.name, name)
    return checked


def _own(problem: Problem, name: str, new: Any) -> Change:
    """Make a change from a mapping of parameter names to new values."""
    if not isinstance(new, Mapping) or not new:
        raise ArgumentError(
            f"changes: {name!r}: expected new tensors or functions by parameter name, got {new!r}"
        )
    parameters = dict(problem.model.named_parameters())
    new = {key if key in parameters else plain_name(key): value for key, value in new.items()}
    for parameter in new:
        _check_parameter(problem, name, parameter)
    views = tuple(whole(parameter, parameters[parameter]) for parameter in new)
    return _change(name, ", ".join(new), views, new)


def _check_parameter(problem: Problem, change: str, name: str) -> None:
    if name in problem.parameters:
        return
    named = dict(problem.model.named_parameters(remove_duplicate=False))
    if name not in named:
        raise ArgumentError(f"changes: {change!r}: the model has no parameter {name!r}")
    if not named[name].requires_grad:
        raise ArgumentError(f"changes: {change!r}: {name!r} is frozen; set requires_grad_(True)")
    tied = next(n for n in problem.parameters if named[n] is named[name])
    raise ArgumentError(
        f"changes: {change!r}: {name!r} is tied to {tied!r} and cannot change apart from it; name "
        f"{tied!r} alone"
    )
