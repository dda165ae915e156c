"""Cutting a model's parameters into groups: by role, by head, by parameter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from hessblocks.curvature.groups.layouts import ARCHITECTURES, Rule
from hessblocks.curvature.groups.packing import Piece, heads_of
from hessblocks.curvature.groups.views import ParameterGroup, ParameterView, plain_model, whole
from hessblocks.errors import check_name

LEVELS = ("role", "head", "tensor")


def parameter_groups(model: nn.Module, level: str = "role") -> dict[str, ParameterGroup]:
    """Cut the trainable parameters into groups, each entry in exactly one.

    Args:
        model: any module; hessblocks and known Hugging Face architectures are cut by role, and
            parameters that are not recognised form groups under their own name (role `other`).
        level: `role` (query, key, value, ... of each layer), `head` (query, key, value and projection
            of each head besides) or `tensor` (each parameter).

    Returns:
        Groups by name, in the order of `model.named_parameters()`; a tied parameter appears once.

    Raises:
        ArgumentError: unknown level, heads asked for where their number is not known.
    """
    check_name("level", level, LEVELS)
    model = plain_model(model, sharded=True)
    config = getattr(model, "config", None)
    rules = [] if level == "tensor" else ARCHITECTURES.get(getattr(config, "model_type", ""), [])
    collected: dict[str, list[ParameterGroup]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            for group in _cut(name, parameter, rules, config, by_head=level == "head"):
                collected.setdefault(group.name, []).append(group)
    return {name: merge(name, parts) for name, parts in collected.items()}


def merge(name: str, parts: Sequence[ParameterGroup]) -> ParameterGroup:
    """One group of several, with role and layer where they agree."""
    roles, layers = {part.role for part in parts}, {part.layer for part in parts}
    return ParameterGroup(
        name=name,
        role=roles.pop() if len(roles) == 1 else "other",
        layer=layers.pop() if len(layers) == 1 else None,
        views=tuple(view for part in parts for view in part.views),
    )


def _cut(
    name: str, parameter: Tensor, rules: Sequence[Rule], config: Any, *, by_head: bool
) -> list[ParameterGroup]:
    for rule in rules:
        match = re.fullmatch(rule.pattern, name)
        if match:
            layer = match.groupdict().get("layer")
            return [
                ParameterGroup(
                    name=title.format(layer=layer),
                    role=role,
                    layer=None if layer is None else int(layer),
                    views=(view,),
                )
                for title, role, view in _pieces(rule, name, parameter, config, by_head=by_head)
            ]
    return [ParameterGroup(name=name, role="other", layer=None, views=(whole(name, parameter),))]


def _pieces(
    rule: Rule, name: str, parameter: Tensor, config: Any, *, by_head: bool
) -> list[tuple[str, str, ParameterView]]:
    """Group name (with {layer} left open), role and view of each piece of one parameter."""
    if rule.packing is None or parameter.ndim == 0 or not (by_head or rule.role == ""):
        return [(rule.name.replace("{role}", rule.role), rule.role, whole(name, parameter))]
    heads = heads_of(config)
    axis = min(rule.axis, parameter.ndim - 1)
    found = []
    for piece in rule.packing(parameter.shape[axis], heads):
        title = rule.name.replace("{role}", piece.role)
        if not by_head:
            found.append((title, piece.role, _view(name, parameter, axis, piece)))
            continue
        for number, part in enumerate(piece.by_head(heads.of(piece.role))):
            view = _view(name, parameter, axis, part)
            found.append((f"{title}.head.{number}", piece.role, view))
    return found


def _view(name: str, parameter: Tensor, axis: int, piece: Piece) -> ParameterView:
    full = whole(name, parameter)
    unit = full.stride[axis]
    return ParameterView(
        parameter=name,
        shape=(*full.shape[:axis], piece.blocks, piece.length, *full.shape[axis + 1 :]),
        stride=(*full.stride[:axis], piece.step * unit, unit, *full.stride[axis + 1 :]),
        offset=piece.offset * unit,
    )
