"""The public door to the closed form: plain tensors in, `AttentionHessian` out.

Letters: B sequences, L tokens, D width, H heads, G key-value heads, K query-key width, V value width,
O output width, C rank of a curvature factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from hessblocks.errors import check_name
from hessblocks.linalg import MEMORY_LIMIT
from hessblocks.theory.arguments.layer_weights import checked_layer
from hessblocks.theory.arguments.loss import checked_loss
from hessblocks.theory.arguments.validation import check_input, check_memory_limit
from hessblocks.theory.hessian import AttentionHessian


def attention_hessian(
    x: Float[Tensor, "... L D"],
    w_query: Float[Tensor, "... D K"],
    w_key: Float[Tensor, "... D K"] | None,
    w_value: Float[Tensor, "... D V"] | None,
    w_projection: Float[Tensor, "... V O"] | None = None,
    *,
    target: Float[Tensor, "... L O"] | None = None,
    gradient: Float[Tensor, "... L O"] | None = None,
    curvature: Float[Tensor, "... L O O"] | None = None,
    curvature_factor: Float[Tensor, "... L C O"] | None = None,
    mask: Literal["causal"] | Bool[Tensor, "... L L"] | None = None,
    scores: Literal["softmax", "linear"] = "softmax",
    query_key: Literal["two-matrix", "one-matrix"] = "two-matrix",
    gains: Sequence[Float[Tensor, "..."] | float] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> AttentionHessian:
    """The Hessian of a loss in the weights of one self-attention layer, in closed form.

    F(X) = Σ_h (α_h X + β_h A_h X − γ_h C X) W_V^h W_O^h with A_h = softmax(T_h) or T_h, and
    T_h = X W_Q^h (X W_K^h)ᵀ / sqrt(K), or X W_QK^h Xᵀ without a scale where there is one matrix.
    C is uniform over the permitted keys. The Hessian splits by Gauss and Newton at F:
    H = H_o + H_f, H_o = (∂F)ᵀ(∂²ℓ/∂F²)(∂F), H_f = Σ (∂ℓ/∂F) ∂²F.

    Our names beside the paper's: width, tokens = their d_V (of the embedding), L; head width K = d_K;
    value width V = d_V; w_query, w_key, w_value = W_Q, W_K, W_V; outer and functional = H_o and H_f;
    moments.first, second, third = M_1, M_2, M_3. Weights act as `x @ w` and are flattened row by row
    (their vec_r).

    Args:
        x: input, (batch, tokens, width), or (tokens, width) for one sequence.
        w_query: W_Q, (width, head width), or (heads, width, head width). With one matrix, W_QK of
            shape (width, width) or (heads, width, width).
        w_key: W_K, as `w_query`, or fewer heads each shared by as many query heads in a row;
            None with one matrix.
        w_value: W_V, (width, value width), or stacked by head as `w_key`; None for identity values
            (head h passes on the h-th column block of x), which have no block.
        w_projection: W_O, (value width, out), or (heads, value width, out); None where heads stand side
            by side in the output, which has no block.
        target: Y for the squared loss, (batch, tokens, out). The loss is ‖F − Y‖² / (batch · tokens · out),
            the paper's ℓ averaged over the batch.
        gradient: instead of `target`, ∂ℓ/∂F of each token, (batch, tokens, out), with whatever averaging
            the loss has.
        curvature: with `gradient`, Λ = ∂²ℓ/∂F² of each token, (batch, tokens, out, out), symmetric.
        curvature_factor: instead of `curvature`, R with RᵀR = Λ, (batch, tokens, rank, out).
        mask: None, "causal", or booleans (tokens, tokens) or (batch, tokens, tokens), True = may attend.
        scores: "softmax", or "linear" (A = T, 0 where not permitted).
        query_key: "two-matrix", or "one-matrix".
        gains: (alpha, beta, gamma) of shaped attention, each one number or one a head; they become groups
            of their own. None is plain attention, (0, 1, 0) without gain groups.
        memory_limit: bytes that the intermediate results of one operation may take.

    Returns:
        The Hessian: `.block(row, column, part)`, `.whole(part)`, `.dense(part)`, `.norms()`, `.moments`;
        groups among query (query_key with one matrix), key, value, projection, alpha, beta, gamma.

    Raises:
        ArgumentError: shapes that do not fit, integer, half-precision or mixed dtypes, mixed devices,
            entries that are not finite or overflow the scores, a mask row that allows nothing, target and
            gradient together.

    Cost: nothing is computed here beyond F (for `target`); see the operators' methods.

    Source: Ormaniec, Dangel & Singh 2025 (arXiv 2410.10986), theorems 3.1 (outer), 3.2 (functional),
    there for one head, softmax, squared loss; token form and the rest: docs/theory.md.
    """
    x = check_input(x)
    check_memory_limit(memory_limit)
    check_name("scores", scores, ("softmax", "linear"))
    check_name("query_key", query_key, ("two-matrix", "one-matrix"))
    layer = checked_layer(
        x, w_query, w_key, w_value, w_projection, query_key, gains, mask, scores, memory_limit
    )
    gradient, token_curvature = checked_loss(layer, target, gradient, curvature, curvature_factor)
    return AttentionHessian(layer, gradient=gradient, curvature=token_curvature)
