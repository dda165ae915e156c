"""One layer of attention written plainly, its scores apart: what autodiff is asked about.

Letters: B sequences, L tokens, H heads, D width.
"""

from typing import Any

import torch
from torch import Tensor

from hessblocks.theory.piecewise import GROUPS

Weights = dict[str, Tensor]


def weights_of(made: dict[str, Any]) -> Weights:
    """The weights by group, stacked by head, in the order of the whole matrix."""
    found = {
        "query" if made["w_key"] is not None else "query_key": made["w_query"],
        "key": made["w_key"],
        "value": made["w_value"],
        "projection": made["w_projection"],
    }
    found |= dict(zip(("alpha", "beta", "gamma"), made["gains"] or (None,) * 3, strict=True))
    return {group: found[group] for group in GROUPS if found.get(group) is not None}


def scores(made: dict[str, Any], weights: Weights) -> Tensor:
    """T of every head, (H, B, L, L)."""
    x = made["x"]
    if "query_key" in weights:
        return torch.einsum("bid,hde,bje->hbij", x, weights["query_key"], x) / made["temperature"]
    heads, _, width = weights["query"].shape
    queries = torch.einsum("bid,hdk->hbik", x, weights["query"])
    keys = torch.einsum("bjd,hdk->hbjk", x, _per_head(weights["key"], heads))
    if made["rotary"] is not None:
        queries, keys = (_turned(each, *made["rotary"]) for each in (queries, keys))
    return queries @ keys.mT / (width**0.5 * made["temperature"])


def outputs(made: dict[str, Any], weights: Weights, t: Tensor) -> Tensor:
    """F from the scores, (B, L, O)."""
    x, permitted = made["x"], permitted_of(made)
    if made["scores"] == "softmax":
        attention = t.masked_fill(~permitted, -torch.inf).softmax(-1)
    else:
        attention = t * permitted
    if "alpha" in weights:
        uniform = permitted.to(x.dtype) / permitted.sum(-1, keepdim=True)
        identity = torch.eye(x.shape[1], dtype=x.dtype)
        a, b, c = (weights[name][:, None, None, None] for name in ("alpha", "beta", "gamma"))
        attention = a * identity + b * attention - c * uniform
    values = torch.einsum("bjd,hdv->hbjv", x, _per_head(weights["value"], len(t)))
    mixed = attention @ values
    if "projection" in weights:
        return torch.einsum("hbiv,hvo->bio", mixed, weights["projection"])
    return torch.cat(list(mixed), dim=-1)


def permitted_of(made: dict[str, Any]) -> Tensor:
    """Booleans, True where a query may attend."""
    mask, tokens = made["mask"], made["x"].shape[1]
    if isinstance(mask, Tensor):
        return mask
    everything = torch.ones(tokens, tokens, dtype=torch.bool)
    return everything.tril() if mask == "causal" else everything


def _per_head(weight: Tensor, heads: int) -> Tensor:
    return weight.repeat_interleave(heads // len(weight), dim=0)


def _turned(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    turned = cosines.shape[-1]
    first, rest = vectors[..., :turned], vectors[..., turned:]
    half = torch.cat([-first[..., turned // 2 :], first[..., : turned // 2]], dim=-1)
    return torch.cat([first * cosines + half * sines, rest], dim=-1)
