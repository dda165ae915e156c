"""Sort parameters into groups by rules on their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hessblocks.curvature.groups.packing import Packing, one_role

HEAD = r"(lm_head|score|classifier|cls|head|decoder|pooler)(\.\w+)*"
"""Modules of a head, where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Pattern on parameter names, and the groups that a match goes to."""

    pattern: str
    """Regular expression for the whole name; its group `layer` gives the layer."""
    name: str
    """Group name; {layer} and {role} are filled in."""
    role: str
    """Role of the whole parameter; empty where `packing` holds several."""
    packing: Packing | None = None
    """How heads lie along `axis`; None where the parameter has no heads."""
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
    """Look up the rules of an architecture.

    Args:
        layer: how the names of a layer's parameters begin.
        groups: from group name to a pattern of its modules or parameters. Those of a layer continue
            `layer`; attention has `query`, `key` and `value`, or one `fused` weight, and
            `projection`; the same behind `cross.` for attention to an encoder. Those outside may
            stand in a base model. Without `head`, any of the usual names is one.
        packing: how heads lie in the fused weight.
        conv1d: whether weights are (inputs, outputs).
        side: with which the names of the layers' groups begin, such as `encoder`.

    Returns:
        Those of the layers and those outside, in the order in which they are tried.
    """
    rules = []
    begin = f"{side}.layers.{{layer}}." if side else "layers.{layer}."
    for name, modules in {**groups, "head": groups.get("head", HEAD)}.items():
        own = r"\w+" if name in _OWN_NAMES else "weight|bias"
        pattern = rf"({modules})(\.({own}))?"
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
            if role == "projection":  # along the inputs; the shift belongs to no head
                bias = rf"{layer}({modules})\.bias"
                rules.append(replace(rule, pattern=bias, packing=None))
            rules.append(rule)
    return rules


_OWN_NAMES = ("norm", "gains", "final.norm", "embedding.norm")
"""Groups whose modules name their parameters as they like; other names elsewhere are of something
added (LoRA)."""
_INSIDE = {
    "mlp.in": "mlp_in",
    "mlp.out": "mlp_out",
    "mlp.router": "router",
    "norm": "norm",
    "gains": "gain",
    "attention.bias": "embedding",
}
"""Role of the groups of a layer besides attention."""
_OUTSIDE = {
    **{f"embedding.{of}": "embedding" for of in ("token", "position", "segment", "patch")},
    "embedding.norm": "norm",
    "final.norm": "norm",
    "head": "head",
}
"""Role of the groups outside the layers."""
