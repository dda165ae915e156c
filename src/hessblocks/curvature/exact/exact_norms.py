"""Exact norms of the blocks of a model's last attention, for the two losses of the Hessian paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import jacrev
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from hessblocks.conventions import IGNORED, PARTS, Part
from hessblocks.curvature.exact.behind_attention import TokenDerivatives
from hessblocks.curvature.exact.compression import compressed
from hessblocks.curvature.exact.last_attention import LastAttention, last_attention
from hessblocks.curvature.exact.last_block import behind_cross_entropy, hessian_of
from hessblocks.curvature.products import causal_targets, unpack
from hessblocks.errors import unknown_name
from hessblocks.linalg import Estimate

Norms = dict[tuple[str, Part], Estimate]
"""(group, part) → Frobenius norm of the group's own block."""


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

    Raises:
        ArgumentError: an unknown loss, or a model that the closed form does not cover.
    """
    if loss not in _BEHIND:
        raise unknown_name("loss", loss, _BEHIND)
    unpacked = unpack(batch, next(model.parameters()).device)
    labels = causal_targets(unpacked)
    valid = labels != IGNORED
    found = last_attention(model, unpacked)
    with torch.no_grad():
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
    """
    attended = found.attended[valid]
    sides = tuple(side[valid] for side in found.sides)
    logits = found.network(attended, *sides)
    linear_map: Tensor = jacrev(found.network)(attended[0], *(side[0] for side in sides))
    residual = logits - F.one_hot(labels[valid], logits.shape[-1])
    share = 2 / residual.numel()
    return TokenDerivatives(
        gradient=share * residual @ linear_map,
        factor=(share**0.5 * linear_map).expand(len(attended), -1, -1),
        functional=None,
    )


_BEHIND: dict[str, Callable[[LastAttention, Tensor, Tensor], TokenDerivatives]] = {
    "cross-entropy": behind_cross_entropy,
    "squares": _squares,
}
