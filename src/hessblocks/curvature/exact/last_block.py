"""Exact Hessian of the last attention of a real model, in closed form.

The layers after the last attention act on each token separately. They enter the closed form only by
three quantities per token: g, Λ_o and Λ_f (see `tail`).

Letters: B sequences, L tokens.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from hessblocks.conventions import IGNORED
from hessblocks.curvature import last_layer
from hessblocks.curvature.exact.block_hessian import LastBlockHessian
from hessblocks.curvature.exact.input_norm import InputNorm, widened
from hessblocks.curvature.exact.tail import TokenDerivatives, TokenTail, token_derivatives
from hessblocks.curvature.exact.unembedding import SeenLoss
from hessblocks.curvature.groups import plain_model
from hessblocks.curvature.losses import Batch, causal_targets, check_task, given_labels, unpack
from hessblocks.curvature.model_state import exclusive
from hessblocks.errors import ArgumentError, check_name, check_whole
from hessblocks.linalg import MEMORY_LIMIT
from hessblocks.theory import AttentionHessian, AttentionLayer, TokenCurvature

_TARGETS: dict[str, Callable[[Batch], Tensor]] = {
    "causal-lm": causal_targets,
    "masked-lm": given_labels,
    "classification": given_labels,
}
"""For each loss name, the function that returns a batch's labels."""


def exact_attention_curvature(
    model: nn.Module, batch: Any, loss: str = "causal-lm", *, memory_limit: int = MEMORY_LIMIT
) -> AttentionHessian:
    """Compute H, H_o and H_f exactly by the last attention's weights, gains and head norms.

    The weights are those of queries, keys, values and projection. H_o is the Gauss-Newton matrix
    with the logits as network output, as in the Hessian paper. The loss is the mean cross-entropy
    over the valid tokens of the batch.

    Args:
        model: a hessblocks model of any preset, or one of the Hugging Face architectures in
            `ARCHITECTURES` with its head: causal or masked language model, or ViT for
            classification.
        batch: a dict with `input_ids` (sequences, tokens), and optionally `labels`,
            `attention_mask` and `position_ids`; or the ids alone. As in training there is no
            key-value cache: causal models separate packed sequences where positions restart.
        loss: causal-lm (labels default to the inputs without padding), masked-lm, or classification
            for images.
        memory_limit: bytes that the intermediate results of one operation may take.

    Returns:
        The blocks: `.block("query", "key", part="outer", head=0)`, `.norms()`, `.moments`. A weight
        is flattened head by head, each head's (inputs, outputs) matrix row by row, with a bias as
        the last row. Identity values and projections have no block, and neither have trained gains
        of reparametrised weights.

    Raises:
        ArgumentError: the closed form does not support the model or a part, half precision, or no
            valid token.

    Cost: one forward pass; for each of the N labelled tokens min(C, D) passes of the network after
        the attention (D the width, C the vocabulary) and, unless it is piecewise linear, D gradient
        passes; N C D² multiplications for the vocabulary if C ≥ D; then the cost of the block (see
        `AttentionHessian`). Memory: 2 N D (min(C, D) + D) numbers; use fewer or shorter sequences
        if that is too much.

    Source: Ormaniec, Dangel & Singh (2025), theorems 3.1 and 3.2, in token form (`docs/theory.md`).

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = hb.build("pre-ln", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> batch = {"input_ids": torch.randint(20, (2, 8))}
        >>> exact = hb.exact_attention_curvature(model, batch).block("query", "query")
        >>> query = hb.parameter_groups(model)["layers.0.attention.query"]
        >>> products = hb.Hessian(hb.Problem(model, batch), query).dense()
        >>> abs(exact.frobenius_norm() / products.norm().item() - 1) < 1e-3
        True
    """
    model = plain_model(model)
    with taken(model, batch, loss, memory_limit) as (last, targets, valid):
        behind = behind_cross_entropy(last, targets, valid, memory_limit)
    return hessian_of(replace(last.layer, memory_limit=memory_limit), behind, valid)


def exact_last_block(
    model: nn.Module, batch: Any, loss: str = "causal-lm", *, memory_limit: int = MEMORY_LIMIT
) -> LastBlockHessian:
    """Compute H, H_o and H_f exactly by all parameters from the last attention on.

    The groups are those of `exact_attention_curvature`; each later linear layer with its bias (by
    the module's name); each gain or bias of a norm and each gain of a branch (by the parameter's
    name), including the norm before the attention; and `unembedding`. There is a block for any two
    of them. Other parameters before the last attention have no block, such as scale and shift of a
    DyT or Derf in front of it.

    Args:
        model: as for `exact_attention_curvature`.
        batch: a dict with `input_ids` (sequences, tokens), and optionally `labels` and
            `attention_mask`; or the ids alone.
        loss: causal-lm (labels default to the inputs without padding), masked-lm, or classification
            for images.
        memory_limit: bytes that the intermediate results of one operation may take; each cached
            derivative of all tokens may take eight times as much.

    Returns:
        The blocks: `.groups`, `.block("query", "unembedding", part="outer")`, `.norms()`,
        `.whole()`, `.dense()`; `.tied` tells whether the unembedding is also the embedding.

    Raises:
        ArgumentError: as `exact_attention_curvature`; a parameter is used in an unknown way; or,
            from `.block`, a block needs more memory than allowed, with the number of bytes.

    Warns:
        UserWarning: trained parameters of the last layer have no block, since its attention's input
            depends on them otherwise than entry by entry.

    Cost: for a block of two layers with S and T outputs, N tokens: min(S, T) passes back per token
        for H_f, D for H_o, and N S T numbers; then what sums of N Kronecker products cost.

    Source: Ormaniec, Dangel & Singh (2025), theorems 3.1 and 3.2, in token form; the layers after
        the attention by the chain rule (`docs/theory.md`).

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = hb.build("pre-ln", depth=2, width=16, heads=2, vocab_size=20, context=8)
        >>> hessian = hb.exact_last_block(model, {"input_ids": torch.randint(20, (2, 8))})
        >>> list(hessian.groups)[:5]
        ['query', 'key', 'value', 'projection', 'model.layers.1.attention_norm.weight']
        >>> hessian.block("query", "unembedding", part="outer").shape
        (256, 320)
    """
    model = plain_model(model)
    with taken(model, batch, loss, memory_limit) as (last, targets, valid):
        if last.left_out:
            raise ArgumentError(
                f"model: the trained {last.left_out[0]!r} of its last attention has no closed "
                "form; use hessblocks.exact_attention_curvature, which leaves it out, or "
                "hessblocks.Hessian"
            )
        positions = valid.any(0).nonzero()[:, 0]
        labelled = valid[:, positions].flatten()
        tail = TokenTail(model, last, positions, memory_limit)
        hidden_loss = SeenLoss(
            last.output_layer,
            tail.hidden,
            targets[:, positions].flatten().masked_fill(~labelled, 0),
            labelled.to(tail.hidden) / int(valid.sum()),
            memory_limit,
        )
        behind = behind_cross_entropy(last, targets, valid, memory_limit)
    tail.note_state()
    without = sorted({*last.before} - {*last.multipliers})
    if without := [name for name in without if model.get_parameter(name).requires_grad]:
        warnings.warn(
            f"exact_last_block: {', '.join(without)} in front of the attention have no closed form "
            "and no block; use hessblocks.Hessian for them",
            stacklevel=2,
        )
    weight = last_layer.output_layer(model).weight
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    attention = hessian_of(replace(last.layer, memory_limit=memory_limit), behind, valid)
    norm = None
    if last.multipliers:
        wide, places = widened(attention.layer, last.multipliers)
        norm = InputNorm(hessian_of(wide, behind, valid), places)
    return LastBlockHessian(
        attention,
        tail,
        hidden_loss,
        norm=norm,
        unembedding=weight.requires_grad,
        tied=getattr(embedding, "weight", None) is weight,
        memory_limit=memory_limit,
    )


@contextmanager
def taken(
    model: nn.Module, batch: Any, loss: str, memory_limit: int
) -> Iterator[tuple[last_layer.LastAttention, Int[Tensor, "B L"], Bool[Tensor, "B L"]]]:
    """Extract the last attention, with the targets and the mask of valid ones."""
    check_name("loss of the closed form", str(loss), _TARGETS)
    check_whole(1, memory_limit=memory_limit)
    with exclusive(model):
        last_layer.check_model(model)
    unpacked = unpack(batch, next(model.parameters()).device)
    _check_inputs(unpacked, loss)
    check_task(model, loss)
    targets = _TARGETS[loss](unpacked).long()
    with last_layer.undisturbed(model):
        last = last_layer.last_attention(model, unpacked)
        _check_targets(targets, unpacked, len(last.output_layer.weight))
        if last.seen.pooled != (loss == "classification"):
            raise ArgumentError(
                f"loss: {loss} does not fit {type(model).__name__}; expected "
                + ("classification" if last.seen.pooled else "causal-lm or masked-lm")
            )
        if last.seen.pooled:
            targets = nn.functional.pad(
                targets[:, None], (0, last.seen.x.shape[1] - 1), value=IGNORED
            )
        valid = targets != IGNORED
        with torch.no_grad():
            last.check(valid)
        yield last, targets, valid


def hessian_of(
    layer: AttentionLayer, behind: TokenDerivatives, valid: Bool[Tensor, "B L"]
) -> AttentionHessian:
    """Build the Hessian of a layer from its labelled tokens; other tokens contribute 0."""
    positions = valid.any(0).nonzero()[:, 0]
    labelled = valid[:, positions]
    return AttentionHessian(
        layer,
        gradient=_filled(behind.gradient, valid).view(*valid.shape, -1),
        curvature=_spread(behind.outer, labelled),
        functional_curvature=behind.functional and _spread(behind.functional, labelled),
        positions=positions,
    )


def _spread(curvature: TokenCurvature, labelled: Tensor) -> TokenCurvature:
    filled = _filled(curvature.numbers, labelled)
    if curvature.factor is None:
        return replace(curvature, matrix=filled)
    return replace(curvature, factor=filled)


def _filled(values: Tensor, labelled: Tensor) -> Tensor:
    """Scatter the values of labelled tokens; zeros for the other tokens."""
    if labelled.all():
        return values
    out = values.new_zeros(labelled.numel(), *values.shape[1:])
    out[labelled.flatten()] = values
    return out


def _check_inputs(batch: Batch, loss: str) -> None:
    ids = batch.inputs
    if not len(ids):
        raise ArgumentError("batch: expected at least one row, got none")
    if loss == "classification":
        if batch.labels is None or batch.labels.shape != ids.shape[:1]:
            raise ArgumentError(
                f"batch: labels: expected one for each of the {len(ids)} images, got "
                + ("none" if batch.labels is None else str(tuple(batch.labels.shape)))
            )
        ids = batch.labels
    elif ids.ndim != 2 or ids.is_floating_point():
        raise ArgumentError(
            "batch: input_ids: expected whole numbers (sequences, tokens), "
            f"got {ids.dtype} {tuple(ids.shape)}"
        )
    if batch.labels is not None and (batch.labels.is_floating_point() or batch.labels.is_complex()):
        raise ArgumentError(f"batch: labels: expected whole numbers, got {batch.labels.dtype}")
    for name, tensor in (("labels", batch.labels), ("attention_mask", batch.attention_mask)):
        if tensor is not None and tensor.shape != ids.shape:
            raise ArgumentError(
                f"batch: {name}: expected the shape of input_ids, {tuple(ids.shape)}, "
                f"got {tuple(tensor.shape)}"
            )


def _check_targets(targets: Tensor, batch: Batch, classes: int) -> None:
    valid = targets != IGNORED
    if not valid.any():
        raise ArgumentError("batch: every label is ignored; expected at least one valid")
    if batch.attention_mask is not None and (valid & (batch.attention_mask == 0)).any():
        raise ArgumentError(
            "batch: a padding token predicts a label; set the label after it to -100, "
            "or leave labels out"
        )
    lowest, highest = int(targets[valid].min()), int(targets[valid].max())
    if lowest < 0 or highest >= classes:
        raise ArgumentError(
            f"batch: labels: expected 0 to {classes - 1} (or {IGNORED} to ignore), "
            f"got {lowest} to {highest}"
        )


def behind_cross_entropy(
    last: last_layer.LastAttention,
    targets: Int[Tensor, "B L"],
    valid: Bool[Tensor, "B L"],
    memory_limit: int = MEMORY_LIMIT,
) -> TokenDerivatives:
    """Differentiate the mean cross-entropy of labelled tokens by the attention's output.

    Args:
        last: the last attention.
        targets: class of each token.
        valid: mask of the labelled tokens.
        memory_limit: approximate bytes of intermediate results.

    Returns:
        See `token_derivatives`.

    Raises:
        ArgumentError: the network in `last` does not reproduce the model's final hidden states.
    """
    labelled = int(valid.sum())
    loss = SeenLoss(
        last.output_layer,
        last.seen.hidden[valid],
        targets[valid],
        last.seen.x.new_full((labelled,), 1 / labelled),
        memory_limit,
    )
    derivatives = token_derivatives(
        last.network, last.seen.attended[valid], last.seen.x[valid], loss
    )
    last.check_behind(derivatives.hidden, valid)
    return derivatives
