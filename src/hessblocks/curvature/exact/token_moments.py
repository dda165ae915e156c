"""Attention moments of a model's last attention, token by token, and a figure of them.

Letters: B sequences, L tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from hessblocks.curvature.exact.last_block import taken
from hessblocks.curvature.exact.unembedding import SeenLoss
from hessblocks.curvature.groups import plain_model
from hessblocks.errors import ArgumentError
from hessblocks.linalg import MEMORY_LIMIT
from hessblocks.theory import AttentionMoments

if TYPE_CHECKING:
    from hessblocks.figures import Figure

MOST_NAMES = 80
"""Largest number of tokens whose texts label a map legibly."""


def attention_moments(
    model: nn.Module, batch: Any, loss: str = "causal-lm", *, memory_limit: int = MEMORY_LIMIT
) -> AttentionMoments:
    """Compute the first three attention moments of every head of the last attention.

    Equal to `exact_attention_curvature(...).moments`, but without the cost of Λ_o and Λ_f.

    Args:
        model: as for `exact_attention_curvature`.
        batch: as for `exact_attention_curvature`.
        loss: as for `exact_attention_curvature`; the third moment is contracted with its gradient.
        memory_limit: bytes that the logits may take at a time.

    Returns:
        `.first`, `.second`, `.third`, `.norms()`, and `.second_by_key`, each key's contribution to
        the second moment.

    Raises:
        ArgumentError: as `exact_attention_curvature`.

    Cost: one forward pass, one backward pass through the network after the attention; then B H L² D
        operations for `.second_by_key`, and B H L² D² operations and B H L D² numbers for the
        other moments.
    """
    model = plain_model(model)
    with taken(model, batch, loss, memory_limit) as (found, targets, valid), torch.no_grad():
        x, attended = found.seen.x[valid], found.seen.attended[valid]
        hidden, pull, *_ = vjp(lambda a: vmap(found.network)(a, x), attended)
        found.check_behind(hidden, valid)
        share = hidden.new_full((len(hidden),), 1 / len(hidden))
        seen_loss = SeenLoss(found.output_layer, hidden, targets[valid], share, memory_limit)
        (seen,) = pull(seen_loss.gradient)
    gradient = torch.zeros_like(found.seen.attended)
    gradient[valid] = seen
    return AttentionMoments(layer=found.layer, gradient=gradient)


def second_moment_figure(
    moments: AttentionMoments, tokens: Sequence[str] | None = None, sequence: int = 0
) -> Figure:
    """Draw each token's share of the second moment, per head, as two maps.

    The upper map has the share of each key j in Σ_i tr M_2(i), Σ_i a_ij ‖x_j − m_i‖². The lower map
    has the share of each query i, tr M_2(i). Only queries i with a loss are summed.

    Args:
        moments: moments of a layer or of a model (`attention_moments`).
        tokens: texts of the tokens, shown for up to 80 tokens; None: their numbers.
        sequence: index of the sequence in the batch.

    Returns:
        The figure as data; `hessblocks.drawing.draw` draws it.

    Raises:
        ArgumentError: there is no such sequence, the number of texts is wrong, or the second moment
            is 0 at all tokens with a loss.
    """
    from hessblocks.figures import Figure, Heatmap

    sequences, length = moments.layer.x.shape[:2]
    if not 0 <= sequence < sequences:
        raise ArgumentError(f"sequence: expected 0 to {sequences - 1}, got {sequence}")
    names = tuple(map(str, range(length))) if tokens is None else tuple(tokens)
    if len(names) != length:
        raise ArgumentError(f"tokens: expected {length}, one a token, got {len(names)}")
    counted = (moments.gradient[sequence] != 0).any(-1)
    carried = moments.second_by_key[sequence].double() * counted[:, None]
    totals = carried.sum((-2, -1))
    if not (totals > 0).any():
        raise ArgumentError(
            f"sequence: no token with loss of sequence {sequence} has a second moment; choose "
            "another one"
        )
    shown = names if length <= MOST_NAMES else ()
    heads = tuple(f"head {head}" for head in range(len(totals)))

    def shares(title: str, sums: Tensor) -> Heatmap:
        parts = sums / totals.clamp(min=torch.finfo(sums.dtype).tiny)[:, None]
        return Heatmap(
            title=title,
            values=tuple(map(tuple, parts.tolist())),
            label="share of the head's Σ tr M_2",
            rows=heads,
            columns=shown,
        )

    largest = int(totals.argmax())
    return Figure(
        title="Which tokens carry the second moment",
        caption="tr M_2 of a token is the spread of the inputs that it attends to; shares of its "
        f"sum over the {int(counted.sum())} tokens with loss, head by head. The largest sum is "
        f"that of head {largest}, {float(totals[largest] / totals.sum()):.0%} of all heads'.",
        panels=(shares("as keys", carried.sum(-2)), shares("as queries", carried.sum(-1))),
        size=(min(max(4.6, 0.16 * length + 2), 14.0), max(2.6, 0.24 * len(heads) + 1.2)),
        columns=1,
        name="second-moment",
    )
