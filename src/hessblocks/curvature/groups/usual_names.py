"""Guess the groups of an architecture without a table, from the names that known ones use."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from hessblocks.curvature.groups.layouts import (
    ALBERT,
    BERT,
    DISTILBERT,
    GPT2,
    GPTJ,
    LLAMA,
    OPT,
    PHI,
    QKV,
    READ,
    VIT,
)
from hessblocks.curvature.groups.name_rules import Rule, rules_of
from hessblocks.curvature.groups.packing import thirds

_TORCH = {
    **{role: rf"self_attn\.{role[0]}_proj_weight" for role in READ},
    "fused": r"self_attn\.in_proj_(weight|bias)",
    "cross.fused": r"multihead_attn\.in_proj_(weight|bias)",
    "projection": r"self_attn\.out_proj",
    "cross.projection": r"multihead_attn\.out_proj",
    "mlp.in": "linear1",
    "mlp.out": "linear2",
    "norm": r"norm\d",
}
"""`nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer`."""
_TRANSFORMER_LENS = {
    **{role: rf"attn\.[Wb]_{role[0].upper()}" for role in READ},
    "projection": r"attn\.[Wb]_O",
    "mlp.in": r"mlp\.(W_in|W_gate|b_in)",
    "mlp.out": r"mlp\.(W_out|b_out)",
    "norm": r"ln\d\.[wb]",
    "embedding.token": r"embed\.W_E",
    "embedding.position": r"pos_embed\.W_pos",
    "final.norm": r"ln_final\.[wb]",
    "head": r"unembed\.[Wb]_U",
}
_TIMM = {
    "fused": r"attn\.qkv",
    "projection": r"attn\.proj",
    "mlp.in": r"mlp\.fc1",
    "mlp.out": r"mlp\.fc2",
    "norm": r"norm\d",
    "final.norm": "norm",
}
"""The vision transformers of timm."""
_TABLES = (
    *({**QKV, **LLAMA}, {**QKV, **OPT}, BERT, VIT, {**QKV, **PHI}, GPTJ, DISTILBERT),
    *(ALBERT, _TORCH, _TRANSFORMER_LENS, GPT2, _TIMM),
)
"""Those without a fused weight whose order only the architecture could tell; these have [queries |
keys | values], where they are three times as long as they are wide."""
_USUAL = {
    **{
        group: "|".join(dict.fromkeys(table[group] for table in _TABLES if group in table))
        for group in dict.fromkeys(group for table in _TABLES for group in table)
    },
    "head": r"(lm_head|score|classifier|cls|predictions|pooler)(\.\w+)*|embed_out|unembed\.[Wb]_U",
}
_CONTAINER = re.compile(r"((?:\w+\.)*?)(\w+)\.\d+\.")


def usual_rules(names: Sequence[str], *, conv1d: bool, registered: bool) -> list[Rule]:
    """List rules for an unknown architecture: names that known ones use in and around layers.

    Args:
        names: of its parameters; layers are modules with a number in their path. Where there are
            several lists of layers (an encoder and a decoder, two towers), the groups' names begin
            with their path.
        conv1d: whether weights are (inputs, outputs).
        registered: whether it is an architecture of a library, whose fused weights may have another
            order (GPT-BigCode's go head by head) and are left whole, but for those of torch's own
            layers.

    Returns:
        The rules; none where there are no layers.
    """
    lists = dict.fromkeys(found.groups() for name in names if (found := _CONTAINER.match(name)))
    several = len({path for path, _ in lists}) > 1
    usual = dict(_USUAL) | ({"fused": _TORCH["fused"]} if registered else {})
    if not any(".experts." in name for name in names):
        del usual["mlp.router"]  # `mlp.gate` may be half of a gated MLP
    return [
        rule
        for path, own in lists
        for rule in rules_of(
            rf"{re.escape(path)}{own}\.(?P<layer>\d+)\.",
            usual,
            packing=thirds,
            conv1d=conv1d,
            side=(path.rstrip(".") or own) if several else "",
        )
    ]


def outside_rules(model: nn.Module) -> list[Rule]:
    """List rules for embeddings and norms outside the layers, by the type of the module."""
    roles = {nn.Embedding: "embedding", nn.LayerNorm: "norm", nn.RMSNorm: "norm"}
    return [
        Rule(pattern=rf"{re.escape(name)}\.\w+", name=f"{role}.{name}", role=role)
        for name, module in model.named_modules()
        if (role := roles.get(type(module))) and not _CONTAINER.match(f"{name}.")
    ]
