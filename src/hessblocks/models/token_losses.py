"""Token and sequence losses in nats, in the precision of the logits (single at least).

Letters: B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hessblocks.conventions import IGNORED


def cross_entropy(
    logits: Float[Tensor, "*batch classes"],
    labels: Int[Tensor, "*batch"],
    items: Num[Tensor, ""] | int | None = None,
) -> Float[Tensor, ""]:
    """Compute the mean cross-entropy over the labels that are not `IGNORED`, in nats.

    Args:
        logits: float32 or wider is kept, half precision is widened.
        labels: classes; `IGNORED` is left out.
        items: what the sum is divided by, where a batch is one of several that are accumulated;
            None means the valid labels of this batch.

    Returns:
        The loss as a number with a graph.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = F.cross_entropy(
        wide.flatten(0, -2),
        labels.flatten().long(),
        ignore_index=IGNORED,
        reduction="mean" if items is None else "sum",
    )
    return loss if items is None else loss / items


def squared_error(
    predicted: Float[Tensor, "B 1"],
    labels: Num[Tensor, "B ..."],
    items: Num[Tensor, ""] | int | None = None,
) -> Float[Tensor, ""]:
    """Compute the mean squared difference between one number a sequence and its label.

    Args:
        predicted: float32 or wider is kept, half precision is widened.
        labels: numbers, (B,) or (B, 1), in any unit; none is left out.
        items: what the sum is divided by, as in `cross_entropy`.

    Returns:
        The loss as a number with a graph, in the square of the labels' unit.
    """
    wide = predicted.to(torch.promote_types(predicted.dtype, torch.float32))
    total = F.mse_loss(wide, labels.to(wide.dtype).reshape(wide.shape), reduction="sum")
    return total / (len(labels) if items is None else items)


def next_token_loss(
    logits: Float[Tensor, "B T V"],
    tokens: Int[Tensor, "B T"],
    items: Num[Tensor, ""] | int | None = None,
) -> Float[Tensor, ""]:
    """Compute `cross_entropy` of each next token; the last logits have no label."""
    following = F.pad(tokens[:, 1:], (0, 1), value=IGNORED)
    return cross_entropy(logits, following, items)
