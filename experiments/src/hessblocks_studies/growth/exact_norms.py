"""Compute exact Frobenius norms of the last attention's Hessian blocks, for both losses."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from hessblocks.conventions import IGNORED, PARTS, Part
from hessblocks.curvature import LossFunction, exact_attention_curvature
from hessblocks.errors import ArgumentError
from hessblocks.linalg import Estimate
from hessblocks.theory import AttentionHessian, AttentionLayer, TokenCurvature
from hessblocks_studies.growth.addition_model import one_hot_squares

Norms = dict[tuple[str, Part], Estimate]
"""(group, part) → Frobenius norm of the group's diagonal block."""

SAME = 1e-3
"""Relative difference up to which two computations of the logits count as equal, also in single
precision."""


def exact_norms(
    model: PreTrainedModel,
    batch: Mapping[str, Int[Tensor, "sequences tokens"]],
    loss: str | LossFunction,
    groups: Sequence[str],
) -> Norms:
    """Compute Frobenius norms of H_o, H_f and H for groups of the last attention, in closed form.

    For cross-entropy the results equal those of `exact_attention_curvature`.

    Args:
        model: a causal language model; for squares, only its unembedding may follow the last
            attention.
        batch: `input_ids` and `labels`, (sequences, tokens).
        loss: `Problem`'s loss: causal-lm, or `one_hot_squares` (a mean over labels and classes).
        groups: some of query, key, value, projection.

    Returns:
        Exact estimates by group and part.

    Raises:
        ArgumentError: another loss, or a model or group that the closed form does not cover.
    """
    if loss not in ("causal-lm", one_hot_squares):
        raise ArgumentError(f"loss: expected causal-lm or one_hot_squares, got {loss!r}")
    hessian = exact_attention_curvature(model, batch)
    if loss is one_hot_squares:
        hessian = _of_squares(hessian.layer, model, batch)
    return {
        (group, part): Estimate(
            value=hessian.block(group, group, part).frobenius_norm(), method="exact"
        )
        for group in groups
        for part in PARTS
    }


@torch.no_grad()
def _of_squares(
    layer: AttentionLayer, model: PreTrainedModel, batch: Mapping[str, Any]
) -> AttentionHessian:
    """Compute the Hessian of the squared loss against one-hot targets, after the unembedding M.

    With logits f = M a of n labelled tokens and C classes: g = 2/(nC) Mᵀ(f − y), Λ = 2/(nC) MᵀM.

    Returns:
        The blocks of the Hessian; there is no Λ_f.

    Raises:
        ArgumentError: another layer follows the attention.
    """
    unembedding = model.get_output_embeddings().weight
    logits = model(input_ids=batch["input_ids"].to(unembedding.device)).logits
    through = layer.output() @ unembedding.T
    if (through - logits).abs().max() > SAME * logits.abs().max():
        raise ArgumentError(
            "model: for squares its unembedding alone may follow the last attention"
        )
    labels = F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED).to(logits.device)
    valid = (labels != IGNORED)[..., None]
    target = F.one_hot(labels.clamp(min=0), logits.shape[-1])
    share = 2 / (int(valid.sum()) * logits.shape[-1])
    return AttentionHessian(
        layer,
        gradient=share * torch.where(valid, logits - target, 0.0) @ unembedding,
        curvature=TokenCurvature(
            factor=valid.flatten(0, 1)[..., None] * (share**0.5 * unembedding)
        ),
    )
