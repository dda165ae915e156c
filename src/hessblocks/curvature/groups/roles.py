"""Split parameters into groups: by role, head, expert or parameter, or by patterns of names."""

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hessblocks.architectures import ARCHITECTURES, Heads, Rule, Span, heads_of, thirds, usual_rules
from hessblocks.conventions import selects
from hessblocks.curvature.groups.views import (
    ParameterGroup,
    ParameterView,
    check_disjoint,
    plain_model,
    plain_name,
    whole,
)
from hessblocks.curvature.model_state import exclusive
from hessblocks.errors import ArgumentError, check_name

LEVELS = ("role", "head", "expert", "tensor")
_SHOWN = 5
"""Number of parameters that a warning names."""
EXPERTS = re.compile(r"\bexperts\.((?P<number>\d+)\.)?")
"""Pattern in the name of an expert's weight, stacked over experts or in a list of modules."""
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Names of the configuration field with the number of experts."""


class UnknownRoleWarning(UserWarning):
    """Warning that some parameters have no recognised role."""


def parameter_groups(model: nn.Module, level: str = "role") -> dict[str, ParameterGroup]:
    """Split the trainable parameters into groups, each entry in exactly one.

    Args:
        model: any module. Roles in hessblocks and known Hugging Face architectures are known; in
            other models they are guessed from names. A parameter that is not recognised, or whose
            length is not divisible by the number of heads, is a group with its own name and role
            `other`. A warning names these, unless an unknown architecture has no recognised
            parameter.
        level: `role` (query, key, value, ... of each layer), `head` (`role`, with query, key, value
            and projection split by head), `expert` (`role`, with the MLPs of a mixture split by
            expert) or `tensor` (each parameter).

    Returns:
        Groups by name, in the order of `model.named_parameters()`; a tied parameter appears once.

    Raises:
        ArgumentError: the level is unknown, or `head` or `expert` for a model whose number of heads
            or experts is unknown.

    Examples:
        >>> import hessblocks as hb
        >>> model = hb.build("sas-p", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> for name, group in hb.parameter_groups(model).items():
        ...     print(f"{name:26}{group.size:6}")
        embedding.token              320
        layers.0.norm                 16
        layers.0.attention.query     256
        layers.0.attention.key       256
        layers.0.attention.value     258
        layers.0.gains                 8
        layers.0.mlp.in             1024
        layers.0.mlp.out            1024
        final.norm                    16
    """
    check_name("level", level, LEVELS)
    model = plain_model(model, sharded=True)
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", "")
    collected: dict[str, list[ParameterGroup]] = {}
    with exclusive(model):
        rules = [] if level == "tensor" else _rules_of(model, kind)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                for group in _cut(name, parameter, rules, config, level):
                    collected.setdefault(group.name, []).append(group)
    groups = {name: merge(name, parts) for name, parts in collected.items()}
    if level == "expert" and not any(".expert." in name for name in groups):
        raise ArgumentError(
            f"model: {kind or type(model).__name__} has no experts that are known by their names; "
            "use level='role'"
        )
    left = [name for name, group in groups.items() if group.role == "other"]
    if rules and left:
        warnings.warn(
            f"groups: the parameters of {kind or type(model).__name__} are grouped by their names; "
            "no role is known for "
            f"{', '.join(left[:_SHOWN])}{', ...' if len(left) > _SHOWN else ''}: each is a group "
            "of its own (role other); hessblocks.custom_groups can name them",
            UnknownRoleWarning,
            stacklevel=2,
        )
    return groups


def _rules_of(model: nn.Module, kind: str) -> Sequence[Rule]:
    """Return the rules of a known architecture, else guessed ones; none if no name is known."""
    if kind in ARCHITECTURES:
        return ARCHITECTURES[kind].rules
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    conv1d = any(isinstance(module, Conv1D) for module in model.modules())
    usual = usual_rules(names, conv1d=conv1d, registered=bool(kind))
    rules = [rule for rule in usual if _fits(rule, model)]
    patterns = [re.compile(rule.pattern) for rule in rules]
    matched = any(pattern.fullmatch(name) for pattern in patterns for name in names)
    return [*rules, *_outside_rules(model)] if matched else []


def _outside_rules(model: nn.Module) -> list[Rule]:
    """List rules for embeddings and norms outside the layers, found by the module's class."""
    roles = {nn.Embedding: "embedding", nn.LayerNorm: "norm", nn.RMSNorm: "norm"}
    return [
        Rule(pattern=rf"{re.escape(name)}\.\w+", name=f"{role}.{name}", role=role)
        for name, module in model.named_modules()
        if (role := roles.get(type(module))) and not re.search(r"\w\.\d+\.", f"{name}.")
    ]


def _fits(rule: Rule, model: nn.Module) -> bool:
    """Tell whether a rule for thirds applies: with grouped queries, a weight has no thirds."""
    if rule.packing is not thirds:
        return True
    weights = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and re.fullmatch(rule.pattern, name)
    ]
    return all(weight.shape[rule.axis] == 3 * weight.shape[1 - rule.axis] for weight in weights)


def merge(name: str, parts: Sequence[ParameterGroup]) -> ParameterGroup:
    """Join several groups into one; role and layer are kept if all groups agree on them."""
    roles, layers = {part.role for part in parts}, {part.layer for part in parts}
    return ParameterGroup(
        name=name,
        role=roles.pop() if len(roles) == 1 else "other",
        layer=layers.pop() if len(layers) == 1 else None,
        views=tuple(view for part in parts for view in part.views),
    )


def _cut(
    name: str, parameter: Tensor, rules: Sequence[Rule], config: Any, level: str
) -> list[ParameterGroup]:
    for rule in rules:
        match = re.fullmatch(rule.pattern, name)
        layer = match.groupdict().get("layer") if match else None
        heads = partial(heads_of, config, int(layer or 0))
        if match and (pieces := _pieces(rule, name, parameter, heads, by_head=level == "head")):
            if level == "expert" and (expert := EXPERTS.search(name)):
                pieces = _by_expert(*pieces[0], config, expert["number"])
            return [
                ParameterGroup(
                    name=title.format(layer=layer),
                    role=role,
                    layer=None if layer is None else int(layer),
                    views=(view,),
                )
                for title, role, view in pieces
            ]
    return [ParameterGroup(name=name, role="other", layer=None, views=(whole(name, parameter),))]


def _pieces(
    rule: Rule, name: str, parameter: Tensor, heads_of_layer: Callable[[], Heads], *, by_head: bool
) -> list[tuple[str, str, ParameterView]]:
    """List name (with {layer}), role and view of each piece; empty if a split is impossible."""
    if rule.packing is None or parameter.ndim == 0 or not (by_head or rule.role == ""):
        return [(rule.name.replace("{role}", rule.role), rule.role, whole(name, parameter))]
    alike = rule.packing is thirds and not by_head
    heads = Heads(count=1, groups=1) if alike else heads_of_layer()
    axis = min(rule.axis, parameter.ndim - 1)
    named: list[tuple[str, str, ParameterView]] = []
    pieces = rule.packing(parameter.shape[axis], heads)
    if sum(piece.blocks * piece.length for piece in pieces) != parameter.shape[axis]:
        return named
    if by_head and not all(piece.divides(heads.of(piece.role)) for piece in pieces):
        return named
    for piece in pieces:
        title = rule.name.replace("{role}", piece.role)
        parts = {title: piece}
        if by_head:
            numbered = enumerate(piece.by_head(heads.of(piece.role)))
            parts = {f"{title}.head.{number}": part for number, part in numbered}
        for name_of_part, part in parts.items():
            named.append((name_of_part, piece.role, _view(name, parameter, axis, part)))
    return named


def _by_expert(
    title: str, role: str, view: ParameterView, config: Any, number: str | None
) -> list[tuple[str, str, ParameterView]]:
    """Split a weight [expert][...] by expert; a weight in a list of modules has one expert."""
    if number is not None:
        return [(f"{title}.expert.{number}", role, view)]
    counts = {getattr(config, name, None) for name in EXPERT_COUNTS}
    if view.shape[0] not in counts:  # the first axis is not the experts'
        return [(title, role, view)]
    first = replace(view, shape=view.shape[1:], stride=view.stride[1:])
    return [
        (f"{title}.expert.{at}", role, replace(first, offset=at * view.stride[0]))
        for at in range(view.shape[0])
    ]


def _view(name: str, parameter: Tensor, axis: int, piece: Span) -> ParameterView:
    full = whole(name, parameter)
    unit = full.stride[axis]
    return ParameterView(
        parameter=name,
        shape=(*full.shape[:axis], piece.blocks, piece.length, *full.shape[axis + 1 :]),
        stride=(*full.stride[:axis], piece.step * unit, unit, *full.stride[axis + 1 :]),
        offset=piece.offset * unit,
    )


def select_groups(
    groups: Mapping[str, ParameterGroup], patterns: str | Iterable[str]
) -> dict[str, ParameterGroup]:
    """Pick groups by role (`query`), by shell-style patterns of names, or as tables print them.

    Tables print `layers.0-3.attention.key` for equal groups of several layers.

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
        chosen |= set(_matching(pattern, {name: group.role for name, group in groups.items()}))
    return {name: group for name, group in groups.items() if name in chosen}


def custom_groups(
    model: nn.Module, specifications: Mapping[str, str | Sequence[str]]
) -> dict[str, ParameterGroup]:
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
    model = plain_model(model, sharded=True)
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
    check_disjoint(groups.values(), parameters)
    return groups


def _texts(spec: str | Iterable[str]) -> list[str]:
    texts = [spec] if isinstance(spec, str) or not isinstance(spec, Iterable) else [*spec]
    if not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"groups: expected patterns on names, got {spec!r}")
    return texts


def _owners(
    view: ParameterView, role_groups: Sequence[ParameterGroup], parameters: Mapping[str, Tensor]
) -> list[ParameterGroup]:
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


def _views(text: str, parameters: Mapping[str, Tensor]) -> list[ParameterView]:
    pattern, cut = text, None
    if text.endswith("]"):
        pattern, _, cut = text[:-1].rpartition("[")
    return [
        _sliced(name, parameters[name], cut)
        for name in _matching(pattern, dict.fromkeys(parameters, ""))
    ]


def _matching(pattern: str, roles: Mapping[str, str]) -> list[str]:
    """List the names that a pattern selects; `roles` maps all names to roles."""
    if pattern in roles:
        return [pattern]
    names, patterns = list(roles), (pattern, plain_name(pattern))
    tried = ([n for n, role in roles.items() if selects(text, n, role)] for text in patterns)
    if not (matching := next(filter(None, tried), [])):
        near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3)
        hint = f"; near: {', '.join(near)}" if near else f"; there are: {', '.join(names[:5])}, ..."
        raise ArgumentError(f"groups: {pattern!r} matches nothing{hint}")
    return matching


def _sliced(name: str, parameter: Tensor, cut: str | None) -> ParameterView:
    view = whole(name, parameter)
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
        raise ArgumentError(f"groups: the slice [{cut}] of {name!r} is empty or runs backwards")
    return ParameterView(
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
