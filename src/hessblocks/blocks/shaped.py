"""Shaped attention (αI + βA − γC) V without any tokens × tokens buffer of its own.

Letters: B sequences, H heads, T queries, S keys, V value width of a head.

C is A at zero scores: uniform over the keys that a query may attend to. Its product with the values
is a running mean, so the whole is α V + β A V − γ runningmean(V), where A V comes from any fused
attention kernel.

Source: Noci et al. (2023); He & Hofmann (2024), eq. 5.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Gains = tuple[Tensor, Tensor, Tensor]


def centre(
    values: Float[Tensor, "B H S V"],
    queries: int,
    *,
    causal: bool,
    allowed: Bool[Tensor, "B S"] | None = None,
) -> Float[Tensor, "B H T V"]:
    """C V: for each query the mean of the values that it may attend to.

    Args:
        values: values of all keys, those of a cache first.
        queries: T, the number of queries; they are the last T of the S keys.
        causal: whether a query attends to itself and what stands before it only.
        allowed: False marks padding keys; None means no padding.

    Returns:
        The means; a query with no allowed key gets zeros.

    Cost: one pass over the values, no tokens × tokens buffer.
    """
    dtype = torch.promote_types(values.dtype, torch.float32)
    keys = values.shape[2]
    if allowed is None:
        if not causal:
            return values.mean(dim=2, keepdim=True).expand(-1, -1, queries, -1)
        counts = torch.arange(1, keys + 1, device=values.device, dtype=dtype)[None, None, :, None]
        sums = values.cumsum(dim=2, dtype=dtype)
    else:
        weights = allowed[:, None, :, None].to(dtype)
        sums, counts = weights * values, weights
        if causal:
            sums, counts = sums.cumsum(dim=2), counts.cumsum(dim=2)
        else:
            sums = sums.sum(dim=2, keepdim=True).expand(-1, -1, keys, -1)
            counts = counts.sum(dim=2, keepdim=True).expand(-1, -1, keys, -1)
    start = keys - queries
    return (sums[:, :, start:] / counts[:, :, start:].clamp(min=1)).to(values.dtype)


def shape_attention(
    attended: Float[Tensor, "B H T V"],
    values: Float[Tensor, "B H S V"],
    gains: Gains,
    *,
    causal: bool,
    allowed: Bool[Tensor, "B S"] | None = None,
) -> Float[Tensor, "B H T V"]:
    """(αI + βA − γC) V from A V and V.

    Args:
        attended: A V, from any attention kernel.
        values: values of all keys; the queries are the last T of them.
        gains: α, β, γ, each broadcastable to (H, 1, 1).
        causal: as in `centre`.
        allowed: as in `centre`.
    """
    alpha, beta, gamma = gains
    queries = attended.shape[2]
    own = values[:, :, values.shape[2] - queries :]
    middle = centre(values, queries, causal=causal, allowed=allowed)
    return alpha * own + beta * attended - gamma * middle


def shaped_matrix(
    attention: Float[Tensor, "B H T S"],
    gains: Gains,
    permitted: Bool[Tensor, "*#BH T S"],
) -> Float[Tensor, "B H T S"]:
    """αI + βA − γC itself, for looking at and for tests; needs the tokens × tokens buffer.

    Args:
        attention: A, rows sum to one over the permitted keys; the queries are the last T of the S keys.
        gains: α, β, γ, each broadcastable to (H, 1, 1).
        permitted: True where a query may attend to a key.
    """
    alpha, beta, gamma = gains
    queries, keys = attention.shape[-2:]
    identity = torch.eye(keys, dtype=attention.dtype, device=attention.device)[keys - queries :]
    weights = permitted.to(attention.dtype)
    middle = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1)
    return alpha * identity + beta * attention - gamma * middle
