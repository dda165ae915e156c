"""Patterns of parameter names, with the group of each parameter that matches."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hessblocks.architectures.packing import Packing, one_role

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
