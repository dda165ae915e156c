"""Replace the query weight by the identity, or query or value by the first layer's weight.

The projection is refitted. Letters: N tokens, I inputs of a matrix, K kept inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.blocks import Identity, Shared, Weight
from hessblocks.simplify.least_squares import Refit
from hessblocks.simplify.place import Candidate, Place

PROJECTION = "attention.projection"


def identity_query(at: Place) -> Candidate | None:
    """Use the normalised hidden states as queries (arXiv 2510.23912)."""
    block = at.block
    as_wide = block.heads * block.resolved_head_width == block.width
    if not as_wide or not at.dense("attention.query", PROJECTION):
        return None
    if block.attention.query_key == "one-matrix":
        return None
    return _replaced(at, "query = identity", "query", Identity())


def shared_query(at: Place) -> Candidate | None:
    """Use the query weight of the first layer."""
    return _shared(at, "query")


def shared_value(at: Place) -> Candidate | None:
    """Use the value weight of the first layer (SVFormer, arXiv 2410.17897, shares its outputs)."""
    return _shared(at, "value")


def _shared(at: Place, name: str) -> Candidate | None:
    first: Any = at.model.model.layers[0].attention
    place = f"attention.{name}"
    if at.index == 0 or first is None or not at.dense(place, PROJECTION):
        return None
    source, own = getattr(first, name), at.layer.get_submodule(place)
    if getattr(getattr(source, "weight", None), "shape", None) != own.weight.shape:
        return None
    return _replaced(at, f"{name} of the first layer", name, Shared())


def _replaced(at: Place, kind: str, name: str, weight: Weight) -> Candidate:
    """Replace a weight, then refit the projection to its old outputs."""
    block = at.block.replace(attention=at.block.attention.replace(**{name: weight}))
    _, wanted = at.projection_pairs(at.layer)
    mixed, _ = at.projection_pairs(at.built(block, at.state))
    state = refitted(at, PROJECTION, Refit(with_ones(at, PROJECTION, mixed), wanted))
    first: Any = at.model.model.layers[0].attention
    own = at.layer.get_submodule(f"attention.{name}")
    source = getattr(first, name) if isinstance(weight, Shared) else None
    new = {f"attention.{name}.weight": torch.eye(block.width).to(own.weight)}
    if source is not None:
        new = {f"attention.{name}.weight": source.weight.detach()}
    if own.bias is not None:
        bias = getattr(source, "bias", None)
        new[f"attention.{name}.bias"] = (
            torch.zeros_like(own.bias) if bias is None else bias.detach()
        )
    return at.candidate(kind, block, state, {**new, **state})


def with_ones(at: Place, name: str, x: Float[Tensor, "N I"]) -> Float[Tensor, "N inputs"]:
    """Append an input of ones if the matrix has a bias."""
    if at.layer.get_submodule(name).bias is None:
        return x
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def refitted(
    at: Place, name: str, equations: Refit, kept: Int[Tensor, " K"] | None = None
) -> dict[str, Float[Tensor, "..."]]:
    """Solve for a matrix and its bias, on the kept inputs.

    Returns:
        Weight (O, K) and bias (O) by name in the layer.
    """
    module = at.layer.get_submodule(name)
    weight = module.weight.detach()
    old = weight.T if kept is None else weight.T[kept]
    if module.bias is None:
        return {f"{name}.weight": equations.solve(old, kept).T.contiguous().to(weight)}
    rows = torch.arange(len(old), device=old.device) if kept is None else kept
    rows = torch.cat([rows, rows.new_tensor([weight.shape[1]])])
    found = equations.solve(torch.cat([old, module.bias.detach()[None]]), rows).to(weight)
    return {f"{name}.weight": found[:-1].T.contiguous(), f"{name}.bias": found[-1]}
