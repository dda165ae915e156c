"""Limits of softmax attention, one-hot and uniform, where the blocks have simple closed forms.

Low temperature, or large scores: attention is one-hot, and a row is the token x_* with its largest
score. Then M_2 = 0 and N_3 = 0. With f = α x + β x_* − γ c̄ the Hessian is left with

    (value, value): Σ f fᵀ ⊗ Λ', (value, projection), (projection, projection), those of the gains.

The blocks and gradients of W_Q and W_K vanish, exponentially in 1/τ.

High temperature, or (without norms of queries and keys) W_Q near 0: attention is uniform, m = c̄,
and M_2 is the covariance of the permitted tokens. Without such norms the blocks of W_Q and W_K
vanish as powers of 1/τ. The blocks of this limit are the factors of those powers:

    block(τ) → τ^−p · block, p the number of query and key indices.

H_f of query and key is a sum of two with powers of their own (`ScoreSplit`). Its H_f^T,
∂ℓ/∂(W_Q W_Kᵀ) ⊗ I, goes as 1/τ. Its H_o^T, with N_3, goes as 1/τ².

Letters: B sequences, L tokens.
"""

from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError, check_name
from hessblocks.theory.hessian import AttentionHessian
from hessblocks.theory.layer import AttentionLayer

Limit = Literal["one-hot", "uniform"]
LIMITS: tuple[Limit, ...] = get_args(Limit)
CLOSE = 1e-9
"""Weights within this relative distance of a row's largest weight tie with it."""


def at_limit(hessian: AttentionHessian, limit: Limit) -> AttentionHessian:
    """Build the Hessian with attention in one of its limits.

    Weights, scale, loss gradient and curvature stay the same.

    With squared loss, the gradient depends on the output, but here it is constant. For the limit of
    the whole layer pass `attention_hessian` the gradient at `at_limit(h, limit).layer.output()`.

    Args:
        hessian: Hessian of a layer of softmax attention.
        limit: one-hot (low temperature) or uniform (high temperature, or W_Q = 0).

    Returns:
        The Hessian. In the uniform limit its blocks are the factors of the powers of 1/τ above.

    Raises:
        ArgumentError: an unknown limit, linear scores, or one-hot attention where a row has two
            largest scores at different tokens.

    Source: docs/theory.md.
    """
    check_name("limit", limit, LIMITS)
    if not hessian.layer.softmax:
        raise ArgumentError(
            "limit: linear scores have no limit; expected a Hessian of softmax attention"
        )
    values = {field.name: getattr(hessian.layer, field.name) for field in fields(AttentionLayer)}
    layer = _LimitLayer(**values, limit=limit)
    for head in range(len(layer.query)):
        layer.attention(head)
    return hessian.with_layer(layer)


@dataclass(frozen=True, kw_only=True, eq=False)
class _LimitLayer(AttentionLayer):
    """Attention layer whose attention is one-hot or uniform."""

    limit: Limit

    def attention(self, head: int) -> Float[Tensor, "B L L"]:
        """Compute A of one head."""
        attention = super().attention(head)
        if self.limit == "uniform":
            permitted = self.permitted.to(attention.dtype)
            return (permitted / permitted.sum(-1, keepdim=True)).expand_as(attention)
        first = torch.zeros_like(attention).scatter_(-1, attention.argmax(-1, keepdim=True), 1.0)
        # equal tokens may tie: whichever is chosen, x_* is the same
        ties = attention >= (1 - CLOSE) * attention.amax(-1, keepdim=True)
        distances = torch.cdist(first @ self.x, self.x, compute_mode="donot_use_mm_for_euclid_dist")
        apart = distances > CLOSE * self.x.norm(dim=-1).amax()
        if (ties & apart).any():
            raise ArgumentError(
                f"limit: one-hot attention is not defined, a row of head {head} has two largest "
                "scores at different tokens (W_Q or W_K zero?); ask for the limit 'uniform'"
            )
        return first
