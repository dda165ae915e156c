"""Select and define parameter groups by patterns of names, with or without slices."""

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from hessblocks.curvature.groups import views
from hessblocks.curvature.groups.roles import UnknownRoleWarning, merge, parameter_groups
from hessblocks.curvature.model_state import exclusive
from hessblocks.errors import ArgumentError


def select_groups(
    groups: Mapping[str, views.ParameterGroup], patterns: str | Iterable[str]
) -> dict[str, views.ParameterGroup]:
    """Pick the groups whose names match a shell-style pattern (`layers.*.attention.query`).

    Returns:
        The chosen groups, in their order in `groups`.

    Raises:
        ArgumentError: a pattern is not a string, or matches nothing; similar names are listed.

    Examples:
        >>> import hessblocks as hb
        >>> model = hb.build("pre-ln", depth=2, width=16, heads=2, vocab_size=20, context=8)
        >>> list(hb.select_groups(hb.parameter_groups(model), ["*.query", "layers.1.mlp.*"]))[1:]
        ['layers.1.attention.query', 'layers.1.mlp.in', 'layers.1.mlp.out']
    """
    chosen: set[str] = set()
    for pattern in _texts(patterns):
        chosen |= set(_matching(pattern, groups))
    return {name: group for name, group in groups.items() if name in chosen}


def custom_groups(
    model: nn.Module, specifications: Mapping[str, str | Sequence[str]]
) -> dict[str, views.ParameterGroup]:
    """Define groups by patterns of parameter names, with or without slices.

    Args:
        model: model whose trainable parameters are grouped.
        specifications: for each group name, one or several strings `pattern` or `pattern[slices]`,
            such as `transformer.h.*.ln_*`, or `transformer.h.0.attn.c_attn.weight[:, 0:64]`;
            brackets at the end are always slices.

    Returns:
        Groups by name. A group has the role and layer of `parameter_groups` if all its entries
        agree on them. Entries that match no pattern belong to no group.

    Raises:
        ArgumentError: `specifications` is not a dict of patterns, a pattern matches no trainable
            parameter, a slice does not fit, or two groups share an entry.

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
        >>> groups = hb.custom_groups(model, {"biases": "*.bias", "first row": "0.weight[0:1]"})
        >>> {name: group.size for name, group in groups.items()}
        {'biases': 6, 'first row': 8}
    """
    model = views.plain_model(model, sharded=True)
    if not isinstance(specifications, Mapping):
        raise ArgumentError(
            "groups: expected a dict from a group's name to patterns on parameter names, got "
            f"{type(specifications).__name__}"
        )
    with exclusive(model):
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        with warnings.catch_warnings():  # the warning recommends the groups that are being made
            warnings.simplefilter("ignore", UnknownRoleWarning)
            role_groups = [*parameter_groups(model).values()]
    groups = {}
    for name, patterns in specifications.items():
        selected = [view for text in _texts(patterns) for view in _views(text, parameters)]
        owners = [owner for view in selected for owner in _owners(view, role_groups, parameters)]
        groups[name] = replace(merge(name, owners), views=tuple(selected))
    views.check_disjoint(groups.values(), parameters)
    return groups


def _texts(spec: str | Iterable[str]) -> list[str]:
    texts = [spec] if isinstance(spec, str) or not isinstance(spec, Iterable) else [*spec]
    if not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"groups: expected patterns on names, got {spec!r}")
    return texts


def _owners(
    view: views.ParameterView,
    role_groups: Sequence[views.ParameterGroup],
    parameters: Mapping[str, Tensor],
) -> list[views.ParameterGroup]:
    """List the known groups that entries of a view belong to."""
    mine = torch.zeros(parameters[view.parameter].numel(), dtype=torch.bool)
    mine.as_strided(view.shape, view.stride, view.offset).fill_(True)
    return [
        group
        for group in role_groups
        for candidate in group.views
        if candidate.parameter == view.parameter
        and mine.as_strided(candidate.shape, candidate.stride, candidate.offset).any()
    ]


def _views(text: str, parameters: Mapping[str, Tensor]) -> list[views.ParameterView]:
    pattern, cut = text, None
    if text.endswith("]"):
        pattern, _, cut = text[:-1].rpartition("[")
    return [_sliced(name, parameters[name], cut) for name in _matching(pattern, parameters)]


def _matching(pattern: str, names: Iterable[str]) -> list[str]:
    names = list(names)
    patterns = (pattern, views.plain_name(pattern))
    tried = ([name for name in names if fnmatchcase(name, one)] for one in patterns)
    if not (matching := next(filter(None, tried), [])):
        near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3)
        hint = f"; near: {', '.join(near)}" if near else f"; there are: {', '.join(names[:5])}, ..."
        raise ArgumentError(f"groups: {pattern!r} matches nothing{hint}")
    return matching


def _sliced(name: str, parameter: Tensor, cut: str | None) -> views.ParameterView:
    view = views.whole(name, parameter)
    if cut is None:
        return view
    texts = cut.split(",")
    if len(texts) > parameter.ndim:
        raise ArgumentError(
            f"groups: [{cut}] has {len(texts)} slices, {name!r} has {parameter.ndim} axes"
        )
    slices = tuple(_slice(text, name) for text in texts)
    forward = all(part.step is None or part.step > 0 for part in slices)
    if not forward or not (selected := torch.empty(view.shape, device="meta")[slices]).numel():
        raise ArgumentError(f"groups: [{cut}] is empty for {name!r}, or runs backwards")
    return views.ParameterView(
        parameter=name,
        shape=tuple(selected.shape),
        stride=selected.stride(),
        offset=int(selected.storage_offset()),
    )


def _slice(text: str, name: str) -> slice:
    try:
        numbers = [int(part) if part.strip() else None for part in text.split(":")]
    except ValueError:
        raise ArgumentError(f"groups: slice {text!r} of {name!r} is not start:stop:step") from None
    if len(numbers) == 1 and numbers[0] is not None:
        return slice(numbers[0], numbers[0] + 1 or None)
    return slice(*numbers)
