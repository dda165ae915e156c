"""Patterns of parameter names with the group of each, and the order of heads in fused weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Sizes of a model's attention."""

    count: int
    """Query heads."""
    groups: int
    """Key-value heads; equal to `count` without grouped queries."""

    def of(self, role: str) -> int:
        """Return the number of heads of one role."""
        return self.groups if role in ("key", "value") else self.count


@dataclass(frozen=True, kw_only=True)
class Span:
    """Indices of one role along the fused axis: `blocks` runs of `length` indices, `step` apart."""

    role: str
    """Role of the entries."""
    offset: int
    """First index."""
    blocks: int
    """Number of runs."""
    length: int
    """Indices in a run."""
    step: int
    """Distance between the starts of successive runs."""

    @property
    def indices(self) -> Int[Tensor, " entries"]:
        """Indices of the entries along the fused axis."""
        starts = self.offset + self.step * torch.arange(self.blocks)
        return (starts[:, None] + torch.arange(self.length)).flatten()

    def divides(self, heads: int) -> bool:
        """Tell whether each run divides into whole heads of equal width."""
        return (
            self.length > 0 and self.blocks * self.length % heads == 0 and heads % self.blocks == 0
        )

    def by_head(self, heads: int) -> list[Span]:
        """Split the indices into one piece per head, in the order of the heads."""
        width = self.blocks * self.length // heads
        return [
            Span(role=self.role, offset=offset + start, blocks=1, length=width, step=width)
            for offset in (self.offset + block * self.step for block in range(self.blocks))
            for start in range(0, self.length, width)
        ]


Packing = Callable[[int, Heads], list[Span]]
"""Maps the length of the fused axis and the heads to the pieces along this axis."""


def one_role(role: str) -> Packing:
    """Return the packing in which the whole axis has one role."""
    return lambda length, heads: [Span(role=role, offset=0, blocks=1, length=length, step=length)]


def stacked(length: int, heads: Heads) -> list[Span]:
    """Split [all queries | all keys | all values]; without grouped queries these are thirds."""
    return _repeated(length, heads, blocks=1)


def thirds(length: int, heads: Heads) -> list[Span]:
    """Split [all queries | all keys | all values] into thirds, as in `nn.MultiheadAttention`."""
    return _repeated(length, Heads(count=1, groups=1), blocks=1)


def interleaved(length: int, heads: Heads) -> list[Span]:
    """Split [group][its queries, key, value]; without grouped queries a group is one head."""
    return _repeated(length, heads, blocks=heads.groups)


def _repeated(length: int, heads: Heads, *, blocks: int) -> list[Span]:
    """Split [block][queries | keys | values]."""
    width = length // (heads.count + 2 * heads.groups)
    query, key = heads.count // blocks * width, heads.groups // blocks * width
    starts = {"query": (0, query), "key": (query, key), "value": (query + key, key)}
    return [
        Span(role=role, offset=offset, blocks=blocks, length=size, step=query + 2 * key)
        for role, (offset, size) in starts.items()
    ]


def heads_of(config: Any, layer: int = 0) -> Heads:
    """Read the heads of a layer from a Hugging Face configuration.

    Returns:
        Numbers of heads and of key-value heads.

    Raises:
        ArgumentError: the configuration has no number of heads.
    """
    if getattr(config, "model_type", "") == "hessblocks":  # its layers may differ
        block = config.pattern[layer % len(config.pattern)]
        return Heads(count=block["heads"], groups=block["key_value_heads"] or block["heads"])
    count = getattr(config, "num_attention_heads", None)
    if not count:
        owner = "its configuration" if config is None else type(config).__name__
        raise ArgumentError(
            f"model: {owner} has no num_attention_heads, so heads cannot be told apart; use "
            "level='role'"
        )
    groups = getattr(config, "num_key_value_heads", None)
    if getattr(config, "model_type", "") == "falcon":
        # Falcon has two switches; its first version shares one key-value head among all queries
        first = 1 if config.multi_query else None
        groups = config.num_kv_heads if config.new_decoder_architecture else first
    return Heads(count=int(count), groups=int(groups or count))


HEAD = r"(lm_head|score|classifier|cls|head|decoder|pooler)(\.\w+)*"
"""Default pattern of a head's modules."""
_OWN_NAMES = ("norm", "gains", "final.norm", "embedding.norm")
"""Groups whose modules may have parameters of any name. In other groups, names besides weight and
bias belong to an adapter (LoRA)."""
_INSIDE = {
    "mlp.in": "mlp_in",
    "mlp.out": "mlp_out",
    "mlp.router": "router",
    "norm": "norm",
    "gains": "gain",
    "attention.bias": "embedding",
}
"""Role of each group of a layer, except query, key, value and projection."""
_OUTSIDE = {
    **{f"embedding.{of}": "embedding" for of in ("token", "position", "segment", "patch")},
    "embedding.norm": "norm",
    "final.norm": "norm",
    "head": "head",
}
"""Role of each group outside the layers."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Pattern of parameter names, with the groups of a parameter that matches."""

    pattern: str
    """Regular expression for the whole name; its group `layer` is the layer's number."""
    name: str
    """Group name, with placeholders {layer} and {role}."""
    role: str
    """Role of the whole parameter; empty if `packing` has several roles."""
    packing: Packing | None = None
    """Order of the heads along `axis`; None if the parameter has no heads."""
    axis: int = 0
    """Axis of a weight along which heads lie."""


def rules_of(
    layer: str,
    groups: Mapping[str, str],
    *,
    packing: Packing | None = None,
    conv1d: bool = False,
    side: str = "",
) -> list[Rule]:
    """Make the rules of an architecture.

    Args:
        layer: pattern of the prefix of a layer's parameter names.
        groups: for each group name, a pattern of its modules or parameters, after the prefix
            `layer` for groups of a layer. Attention has `projection`, and `query`, `key` and
            `value` or one `fused` weight; cross-attention has the same with the prefix `cross.`.
            Groups outside the layers may be inside a base model. The default of `head` is `HEAD`.
        packing: order of the heads in the fused weight.
        conv1d: whether weights are (inputs, outputs).
        side: prefix of the layers' group names, such as `encoder`.

    Returns:
        Rules, in the order in which they are tried.
    """
    rules = []
    begin = f"{side}.layers.{{layer}}." if side else "layers.{layer}."
    for name, modules in {**groups, "head": groups.get("head", HEAD)}.items():
        suffix = r"\w+" if name in _OWN_NAMES else "weight|bias"
        pattern = rf"({modules})(\.({suffix}))?"
        if name in _OUTSIDE:
            rules.append(Rule(pattern=rf"(\w+\.)?{pattern}", name=name, role=_OUTSIDE[name]))
        elif name in _INSIDE:
            rules.append(Rule(pattern=layer + pattern, name=begin + name, role=_INSIDE[name]))
        else:
            cross, _, role = name.rpartition(".")
            rule = Rule(
                pattern=layer + pattern,
                name=begin + ("cross_attention" if cross else "attention") + ".{role}",
                role="" if role == "fused" else role,
                packing=packing if role == "fused" else one_role(role),
                axis=int((role == "projection") != conv1d),
            )
            if role == "projection":  # heads lie along the inputs; the bias belongs to no head
                bias = rf"{layer}({modules})\.bias"
                rules.append(replace(rule, pattern=bias, packing=None))
            rules.append(rule)
    return rules
