"""Exact norms of the blocks of a model's last attention, for the two losses of the Hessian paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import jacrev
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from hessblocks.curvature import PARTS, Part, exact_attention_curvature
from hessblocks.curvature.batches import unpack
from hessblocks.curvature.last_attention import LastAttention, last_attention
from hessblocks.curvature.losses import IGNORED, causal_targets
from hessblocks.errors import unknown_name
from hessblocks.linalg import Estimate
from hessblocks.theory import AttentionHessian, TokenCurvature

Norms = dict[tuple[str, Part], Estimate]
"""(group, part) → Frobenius norm of the group's own block."""


def exact_norms(
    model: PreTrainedModel, batch: Mapping[str, Any], loss: str, groups: Sequence[str]
) -> Norms:
    """Frobenius norms of H_o, H_f and H for groups of the last attention, in closed form.

    Args:
        model: a causal language model; for `squares` everything behind the attention is linear.
        batch: `input_ids` and `labels`, (sequences, tokens).
        loss: cross-entropy or squares (mean over labelled tokens, and over classes).
        groups: among query (query_key where there is one matrix), key, value, projection.

    Raises:
        ArgumentError: an unknown loss, or a model that the closed form does not cover.
    """
    if loss not in _HESSIANS:
        raise unknown_name("loss", loss, _HESSIANS)
    hessian = _HESSIANS[loss](model, batch)
    return {
        (group, part): Estimate(
            value=hessian.block(group, group, part).frobenius_norm(), method="exact"
        )
        for group in groups
        for part in PARTS
    }


def _squares(model: PreTrainedModel, batch: Mapping[str, Any]) -> AttentionHessian:
    """The squared loss against one-hot targets, with a linear map M behind the attention.

    With f = M a the logits of n tokens and C classes: g = 2/(nC) Mᵀ(f − y), Λ = 2/(nC) MᵀM.
    """
    unpacked = unpack(batch, next(model.parameters()).device)
    labels = causal_targets(unpacked)
    valid = labels != IGNORED
    found = last_attention(model, unpacked)
    with torch.no_grad():
        residual, linear_map = _linear_behind(found, labels, valid)
    share = 2 / residual.numel()
    gradient = torch.zeros_like(found.attended)
    gradient[valid] = share * residual @ linear_map
    factor = linear_map.new_zeros(valid.numel(), *linear_map.shape)
    factor[valid.flatten()] = share**0.5 * linear_map
    return AttentionHessian(found.layer, gradient=gradient, curvature=TokenCurvature(factor=factor))


def _linear_behind(found: LastAttention, labels: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Residuals f − y of the labelled tokens, and M."""
    sides = tuple(side[valid] for side in found.sides)
    logits = found.network(found.attended[valid], *sides)
    first = [side[0] for side in sides]
    linear_map: Tensor = jacrev(found.network)(found.attended[valid][0], *first)
    return logits - F.one_hot(labels[valid], logits.shape[-1]), linear_map


_HESSIANS = {"cross-entropy": exact_attention_curvature, "squares": _squares}
