"""Which entries of which weights are queries, keys, values and so on, by architecture.

A rule matches names of parameters and says along which axis the heads lie and how the roles are
packed along it; everything else follows. Weights of `torch.nn.Linear` are (outputs, inputs).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hessblocks.curvature.groups import ParameterGroup, ParameterView, whole
from hessblocks.errors import unknown_name

LEVELS = ("role", "head", "tensor")


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Sizes of a model's attention."""

    count: int
    """Query heads."""
    groups: int
    """Key-value heads; `count` without grouped queries."""

    def of(self, role: str) -> int:
        """Heads of one role."""
        return self.groups if role in ("key", "value") else self.count


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Entries of one role along the packed axis: `blocks` runs of `length`, `step` apart."""

    role: str
    """Role of the entries."""
    offset: int
    """First index."""
    blocks: int
    """Number of runs."""
    length: int
    """Indices in a run."""
    step: int
    """From the start of a run to the start of the next."""

    def heads(self, width: int) -> list[Piece]:
        """The same, one piece of `width` indices a head."""
        return [
            Piece(
                role=self.role,
                offset=self.offset + block * self.step + start,
                blocks=1,
                length=width,
                step=width,
            )
            for block in range(self.blocks)
            for start in range(0, self.length, width)
        ]


Packing = Callable[[int, Heads], list[Piece]]
"""From the length of the packed axis and the heads to the pieces along it."""


def single(role: str) -> Packing:
    """The whole axis has one role."""
    return lambda length, heads: [Piece(role=role, offset=0, blocks=1, length=length, step=length)]


def thirds(length: int, heads: Heads) -> list[Piece]:
    """[queries | keys | values], of sizes in proportion to their heads."""
    width = length // (heads.count + 2 * heads.groups)
    sizes = {role: heads.of(role) * width for role in ("query", "key", "value")}
    starts = {"query": 0, "key": sizes["query"], "value": sizes["query"] + sizes["key"]}
    return [
        Piece(role=role, offset=starts[role], blocks=1, length=size, step=size)
        for role, size in sizes.items()
    ]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Parameters of one kind and the groups that they go to."""

    pattern: str
    """Regular expression for the whole name; its group `layer` gives the layer."""
    name: str
    """Group name; {layer} and {role} are filled in."""
    role: str
    """Role of the whole parameter; ignored where `packing` is given."""
    packing: Packing | None = None
    """Roles along the packed axis."""
    axis: int = 0
    """Axis of a weight along which heads lie; a shift has one axis only."""
    by_head: bool = False
    """Whether level `head` cuts the parameter."""


def _attention_rules(prefix: str, layer_name: str, names: dict[str, str]) -> list[Rule]:
    """Rules for separate query, key, value and projection weights in (outputs, inputs) form."""
    return [
        Rule(
            pattern=rf"{prefix}{names[role]}\.\w+",
            name=f"{layer_name}.attention.{{role}}",
            role=role,
            axis=1 if role == "projection" else 0,
            by_head=True,
        )
        for role in names
    ]


_LAYER = r"(?:.*\.)?layers\.(?P<layer>\d+)\."
HESSBLOCKS = [
    *_attention_rules(
        _LAYER,
        "layers.{layer}",
        {role: f"attention\\.{role}" for role in ("query", "key", "value", "projection")},
    ),
    Rule(
        pattern=_LAYER + r"(attention\.gains\.\w+|(attention|mlp)_branch\.gain)",
        name="layers.{layer}.gains",
        role="gain",
    ),
    Rule(pattern=_LAYER + r"mlp\.(input|gate)\.\w+", name="layers.{layer}.mlp.in", role="mlp_in"),
    Rule(pattern=_LAYER + r"mlp\.output\.\w+", name="layers.{layer}.mlp.out", role="mlp_out"),
    Rule(
        pattern=_LAYER + r"((attention|mlp)_norm|attention\.(query|key)_norm)\.\w+",
        name="layers.{layer}.norm",
        role="norm",
    ),
    Rule(pattern=r"(?:.*\.)?token_embedding\.\w+", name="embedding.token", role="embedding"),
    Rule(pattern=r"(?:.*\.)?position_embedding\.\w+", name="embedding.position", role="embedding"),
    Rule(pattern=r"(?:.*\.)?final_norm\.\w+", name="final.norm", role="norm"),
    Rule(pattern=r"(lm_head|classifier|head)\.\w+", name="head", role="head"),
]

_GPT2_LAYER = r"(?:transformer\.)?h\.(?P<layer>\d+)\."
GPT2 = [
    Rule(
        pattern=_GPT2_LAYER + r"attn\.c_attn\.(weight|bias)",
        name="layers.{layer}.attention.{role}",
        role="",
        packing=thirds,
        axis=1,
        by_head=True,
    ),
    Rule(
        pattern=_GPT2_LAYER + r"attn\.c_proj\.(weight|bias)",
        name="layers.{layer}.attention.projection",
        role="projection",
        axis=0,
        by_head=True,
    ),
    Rule(pattern=_GPT2_LAYER + r"mlp\.c_fc\.\w+", name="layers.{layer}.mlp.in", role="mlp_in"),
    Rule(pattern=_GPT2_LAYER + r"mlp\.c_proj\.\w+", name="layers.{layer}.mlp.out", role="mlp_out"),
    Rule(pattern=_GPT2_LAYER + r"ln_\d\.\w+", name="layers.{layer}.norm", role="norm"),
    Rule(pattern=r"(?:transformer\.)?wte\.weight", name="embedding.token", role="embedding"),
    Rule(pattern=r"(?:transformer\.)?wpe\.weight", name="embedding.position", role="embedding"),
    Rule(pattern=r"(?:transformer\.)?ln_f\.\w+", name="final.norm", role="norm"),
    Rule(pattern=r"(lm_head|score)\.\w+", name="head", role="head"),
]

ARCHITECTURES: dict[str, Sequence[Rule]] = {"hessblocks": HESSBLOCKS, "gpt2": GPT2}


def parameter_groups(model: nn.Module, level: str = "role") -> dict[str, ParameterGroup]:
    """Cut the trainable parameters into groups, each entry in exactly one.

    Args:
        model: any module; hessblocks and known Hugging Face architectures are cut by role, and
            parameters that are not recognised form groups under their own name.
        level: `role` (query, key, value, ... of each layer), `head` (query, key, value and projection
            of each head besides) or `tensor` (each parameter).

    Returns:
        Groups by name, in the order of `model.named_parameters()`; a tied parameter appears once.

    Raises:
        ArgumentError: unknown level.
    """
    if level not in LEVELS:
        raise unknown_name("level", level, LEVELS)
    config = getattr(model, "config", None)
    rules = () if level == "tensor" else ARCHITECTURES.get(getattr(config, "model_type", ""), ())
    heads = _heads(config) if level == "head" else None
    collected: dict[str, list[ParameterGroup]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            for group in _cut(name, parameter, rules, config, heads):
                collected.setdefault(group.name, []).append(group)
    return {name: _merge(parts) for name, parts in collected.items()}


def _heads(config: Any) -> Heads:
    count = _first(config, "num_attention_heads", "n_head", "heads")
    groups = getattr(config, "num_key_value_heads", None) or count
    return Heads(count=count, groups=groups)


def _first(config: Any, *names: str) -> int:
    return next(int(value) for name in names if (value := getattr(config, name, None)))


def _cut(
    name: str, parameter: Tensor, rules: Sequence[Rule], config: Any, heads: Heads | None
) -> list[ParameterGroup]:
    for rule in rules:
        match = re.fullmatch(rule.pattern, name)
        if match:
            return _apply(rule, match.groupdict().get("layer"), name, parameter, config, heads)
    return [ParameterGroup(name=name, role="other", layer=None, views=(whole(name, parameter),))]


def _apply(
    rule: Rule, layer: str | None, name: str, parameter: Tensor, config: Any, heads: Heads | None
) -> list[ParameterGroup]:
    number = None if layer is None else int(layer)

    def group(piece_name: str, role: str, view: ParameterView) -> ParameterGroup:
        return ParameterGroup(name=piece_name, role=role, layer=number, views=(view,))

    cut_heads = heads is not None and rule.by_head and _has_head_axis(rule, parameter)
    if rule.packing is None and not cut_heads:
        full_name = rule.name.format(layer=layer, role=rule.role)
        return [group(full_name, rule.role, whole(name, parameter))]
    sizes = heads or _heads(config)
    axis = min(rule.axis, parameter.ndim - 1)
    packing = rule.packing or single(rule.role)
    groups = []
    for piece in packing(parameter.shape[axis], sizes):
        title = rule.name.format(layer=layer, role=piece.role)
        if not cut_heads:
            groups.append(group(title, piece.role, _view(name, parameter, axis, piece)))
            continue
        width = piece.blocks * piece.length // sizes.of(piece.role)
        for number_of_head, part in enumerate(piece.heads(width)):
            view = _view(name, parameter, axis, part)
            groups.append(group(f"{title}.head.{number_of_head}", piece.role, view))
    return groups


def _has_head_axis(rule: Rule, parameter: Tensor) -> bool:
    """A projection's shift belongs to no head; other shifts lie along the heads."""
    return parameter.ndim > 1 or (parameter.ndim == 1 and rule.role != "projection")


def _view(name: str, parameter: Tensor, axis: int, piece: Piece) -> ParameterView:
    full = whole(name, parameter)
    unit = full.stride[axis]
    return ParameterView(
        parameter=name,
        shape=(*full.shape[:axis], piece.blocks, piece.length, *full.shape[axis + 1 :]),
        stride=(*full.stride[:axis], piece.step * unit, unit, *full.stride[axis + 1 :]),
        offset=piece.offset * unit,
    )


def _merge(parts: list[ParameterGroup]) -> ParameterGroup:
    first = parts[0]
    views = tuple(view for part in parts for view in part.views)
    return ParameterGroup(name=first.name, role=first.role, layer=first.layer, views=views)
