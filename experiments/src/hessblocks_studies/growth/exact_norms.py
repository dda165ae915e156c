"""Exact norms of the blocks of a model's last attention, for the two losses of the Hessian paper.

The layer is first taken to fewer coordinates, where its blocks have the same Frobenius norm. The
inputs of sums are sums of 12 symbols' and 18 positions' vectors: they span at most 30 of the
width's directions. In an orthonormal basis U of that span (and R of the span of the projected queries
and keys), x → x U, W → Uᵀ W R changes every block by orthogonal factors alone.

Letters: D width, K head width, U (D, d) and R (K, k) orthonormal columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import jacrev
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from hessblocks.conventions import IGNORED, PARTS, Part
from hessblocks.curvature.exact.behind_attention import TokenDerivatives
from hessblocks.curvature.exact.last_block import behind_cross_entropy, hessian_of
from hessblocks.curvature.last_layer import LastAttention, last_attention, undisturbed
from hessblocks.curvature.losses import causal_targets, unpack
from hessblocks.errors import check_name
from hessblocks.linalg import Estimate
from hessblocks.theory import AttentionLayer, TokenCurvature

Norms = dict[tuple[str, Part], Estimate]
"""(group, part) → Frobenius norm of the group's own block."""

NEGLIGIBLE = 1e-13
"""Share of the largest eigenvalue of a Gram matrix below which a direction is rounding."""


def exact_norms(
    model: PreTrainedModel, batch: Mapping[str, Any], loss: str, groups: Sequence[str]
) -> Norms:
    """Frobenius norms of H_o, H_f and H for groups of the last attention, in closed form.

    The same as `exact_attention_curvature` gives, about twice as fast where the inputs span few
    directions, and for the squared loss too.

    Args:
        model: a causal language model with one head; for `squares` everything behind the attention
            is linear.
        batch: `input_ids` and `labels`, (sequences, tokens).
        loss: cross-entropy or squares (mean over labelled tokens, and over classes).
        groups: among query, key, value, projection.

    Returns:
        Exact estimates by group and part.

    Raises:
        ArgumentError: an unknown loss, or a model that the closed form does not cover.
    """
    check_name("loss", loss, _BEHIND)
    unpacked = unpack(batch, next(model.parameters()).device)
    labels = causal_targets(unpacked)
    valid = labels != IGNORED
    with undisturbed(model), torch.no_grad():
        found = last_attention(model, unpacked)
        behind = _BEHIND[loss](found, labels, valid)
        hessian = hessian_of(compressed(found.layer), behind, valid)
    return {
        (group, part): Estimate(
            value=hessian.block(group, group, part).frobenius_norm(), method="exact"
        )
        for group in groups
        for part in PARTS
    }


def _squares(found: LastAttention, labels: Tensor, valid: Tensor) -> TokenDerivatives:
    """The squared loss against one-hot targets, with a linear map M behind the attention.

    With f = M a the logits of n tokens and C classes: g = 2/(nC) Mᵀ(f − y), Λ = 2/(nC) MᵀM.

    Returns:
        g and a factor of Λ at the labelled tokens; there is no Λ_f.
    """
    attended = found.attended[valid]
    sides = tuple(side[valid] for side in found.sides)

    def network(a: Tensor, *side: Tensor) -> Tensor:
        logits: Tensor = found.output_layer(found.network(a, *side))
        return logits

    hidden = found.network(attended, *sides)
    logits = found.output_layer(hidden)
    linear_map: Tensor = jacrev(network)(attended[0], *(side[0] for side in sides))
    residual = logits - F.one_hot(labels[valid], logits.shape[-1])
    share = 2 / residual.numel()
    return TokenDerivatives(
        gradient=share * residual @ linear_map,
        outer=TokenCurvature(factor=(share**0.5 * linear_map).expand(len(attended), -1, -1)),
        functional=None,
        hidden=hidden,
    )


_BEHIND: dict[str, Callable[[LastAttention, Tensor, Tensor], TokenDerivatives]] = {
    "cross-entropy": behind_cross_entropy,
    "squares": _squares,
}


def compressed(layer: AttentionLayer) -> AttentionLayer:
    """The same layer in a basis of what its inputs span.

    Args:
        layer: one head, queries and keys apart.

    Returns:
        A layer whose query, key, value and projection blocks have the norms of the given one's.
    """
    assert layer.key is not None
    assert layer.query.shape[0] == 1
    inputs = _basis(layer.x.flatten(0, 1))
    query, key = inputs.T @ layer.query, inputs.T @ layer.key
    if layer.rotation is not None:  # it turns queries and keys where they are
        return replace(
            layer, x=layer.x @ inputs, query=query, key=key, value=inputs.T @ layer.value
        )
    scores = _basis(torch.cat([query[0], key[0]]))
    return replace(
        layer,
        x=layer.x @ inputs,
        query=query @ scores,
        key=key @ scores,
        value=inputs.T @ layer.value,
    )


def _basis(rows: Tensor) -> Tensor:
    """Orthonormal columns that span the rows."""
    wide = rows.double()
    sizes, vectors = torch.linalg.eigh(wide.T @ wide)
    kept: Tensor = vectors[:, sizes > NEGLIGIBLE * sizes[-1]].to(rows.dtype)
    return kept
