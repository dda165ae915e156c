"""Entry point of the closed-form attention Hessian: plain tensors in, `AttentionHessian` out.

Letters: B sequences, L tokens, D width, H heads, G key-value heads, K query-key width, V value
width, O output width, C rank of a curvature factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hessblocks.errors import ArgumentError, check_memory_limit, check_name
from hessblocks.linalg import MEMORY_LIMIT
from hessblocks.theory.arguments.loss import checked_loss
from hessblocks.theory.arguments.validation import (
    check_gains,
    check_input,
    check_mask,
    check_norm,
    check_rotary,
    check_temperature,
    check_tensor,
)
from hessblocks.theory.heads import HeadNorm
from hessblocks.theory.hessian import AttentionHessian
from hessblocks.theory.layer import AttentionLayer


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
    rotary: tuple[Float[Tensor, "... L turned"], Float[Tensor, "... L turned"]] | None = None,
    query_norm: HeadNorm | None = None,
    key_norm: HeadNorm | None = None,
    temperature: float = 1.0,
    memory_limit: int = MEMORY_LIMIT,
) -> AttentionHessian:
    """Build the Hessian of a loss in one self-attention layer's weights, in closed form.

        F(X) = Σ_h (α_h X + β_h A_h X − γ_h C X) W_V^h W_O^h,  A_h = softmax(T_h) or T_h,
        T_h = X W_Q^h (X W_K^h)ᵀ / sqrt(K), or X W_QK^h Xᵀ, unscaled, where there is one matrix.

    C is uniform over the permitted keys, and the temperature divides T_h. The Gauss-Newton (GGN)
    split at F is H = H_o + H_f:

        H_o = (∂F)ᵀ(∂²ℓ/∂F²)(∂F),  H_f = Σ (∂ℓ/∂F) ∂²F.

    Our names beside the paper's: width, tokens = their d_V (of the embedding), L; head width
    K = d_K; value width V = d_V; w_query, w_key, w_value = W_Q, W_K, W_V; outer and
    functional = H_o and H_f; moments.first, second, third = M_1, M_2, M_3. Weights act as `x @ w`
    and are flattened row by row (their vec_r).

    Args:
        x: input, (batch, tokens, width), or (tokens, width) for one sequence.
        w_query: W_Q, (width, head width), or (heads, width, head width). With one matrix, W_QK of
            shape (width, width) or (heads, width, width).
        w_key: W_K, as `w_query`, or fewer heads each shared by as many query heads in a row;
            None with one matrix.
        w_value: W_V, (width, value width), or stacked by head as `w_key`; None for identity values
            (head h passes on the h-th column block of x), which have no block.
        w_projection: W_O, (value width, out), or (heads, value width, out); None where heads stand
            side by side in the output, which has no block.
        target: Y for the squared loss, (batch, tokens, out). The loss is
            ‖F − Y‖² / (batch · tokens · out), the paper's ℓ averaged over the batch.
        gradient: instead of `target`, ∂ℓ/∂F of each token, (batch, tokens, out), averaged as the
            loss is.
        curvature: with `gradient`, Λ = ∂²ℓ/∂F² of each token, (batch, tokens, out, out), symmetric.
        curvature_factor: instead of `curvature`, R with RᵀR = Λ, (batch, tokens, rank, out).
        mask: None, "causal", or booleans (tokens, tokens) or (batch, tokens, tokens), True = may
            attend.
        scores: "softmax", or "linear" (A = T, 0 where not permitted).
        query_key: "two-matrix", or "one-matrix".
        gains: (alpha, beta, gamma) of shaped attention, each one number or one a head; they become
            groups of their own. None is plain attention, (0, 1, 0) without gain groups.
        rotary: (cosines, sines) of rotary positions, each (tokens, turned) or (batch, tokens,
            turned). The first `turned` entries of each head's queries and keys turn in pairs (i,
            i + turned/2), as in Llama and GPT-NeoX.
        query_norm: norm of each head's queries before they are turned, such as
            `HeadNorm.rms(gain)`; all heads share it. Its parameters become a group of their own.
        key_norm: the same for keys.
        temperature: τ, above 0, a further divisor of the scores. Without a norm of queries the
            blocks are those of W_Q / τ, divided by τ once for each query or query_key among row and
            column. Their limits are `theory.at_limit`.
        memory_limit: bytes that the intermediate results of one operation may take.

    Returns:
        The Hessian: `.block(row, column, part)`, `.whole(part)`, `.dense(part)`, `.norms()`,
        `.moments`; groups among query (query_key with one matrix), key, value, projection,
        query_norm, key_norm, alpha, beta, gamma.

    Raises:
        ArgumentError: shapes that do not fit, integer, half-precision or mixed dtypes, mixed
            devices, entries that are not finite or overflow the scores, a mask row that allows
            nothing, a temperature that is not above 0, target and gradient together.

    Cost: nothing is computed here beyond F (for `target`); see the operators' methods.

    Source: Ormaniec, Dangel & Singh 2025 (arXiv 2410.10986), theorems 3.1 (outer) and 3.2
    (functional), there for one head, softmax and squared loss. Token form and the rest:
    docs/theory.md.
    """
    x = check_input(x)
    check_memory_limit(memory_limit)
    check_name("scores", scores, ("softmax", "linear"))
    check_name("query_key", query_key, ("two-matrix", "one-matrix"))
    one_matrix = query_key == "one-matrix"
    query = _check_weight("w_query", w_query, x.shape[2], x)
    heads = query.shape[0]
    key = _check_key(query, w_key, x, one_matrix=one_matrix)
    value = _value_or_identity(w_value, heads, x)
    projection = _projection_or_identity(w_projection, heads, value.shape[2], x)
    gain_tensors = check_gains(gains, heads, x)
    check_temperature(temperature)
    # normed vectors are short, whatever the inputs
    if query_norm is None and key_norm is None:
        _check_scores(x, query / temperature, key)
    optional = (("key", w_key), ("value", w_value), ("projection", w_projection))
    norms = {"query_norm": query_norm, "key_norm": key_norm}
    for name, norm in norms.items():
        check_norm(name, norm, query, one_matrix=one_matrix)
    layer = AttentionLayer(
        x=x,
        query=query,
        key=key,
        value=value,
        projection=projection,
        permitted=check_mask(mask, x.shape[0], x),
        scale=(1.0 if one_matrix else query.shape[2] ** -0.5) / temperature,
        softmax=scores == "softmax",
        gains=gain_tensors,
        rotation=check_rotary(rotary, query, x, one_matrix=one_matrix),
        parameters=(
            "query_key" if one_matrix else "query",
            *(name for name, weight in optional if weight is not None),
            *(name for name, norm in norms.items() if norm is not None and len(norm.parameters)),
            *gain_tensors,
        ),
        query_norm=query_norm,
        key_norm=key_norm,
        memory_limit=memory_limit,
    )
    gradient, token_curvature = checked_loss(layer, target, gradient, curvature, curvature_factor)
    return AttentionHessian(layer, gradient=gradient, curvature=token_curvature)


def _check_key(
    query: Tensor, w_key: Tensor | None, x: Tensor, *, one_matrix: bool
) -> Tensor | None:
    """Check W_K and return it as (G, D, K); None with one matrix."""
    heads, width, head_width = query.shape
    if one_matrix:
        if w_key is not None:
            raise ArgumentError("w_key: expected None with query_key='one-matrix', got a tensor")
        if head_width != width:
            raise ArgumentError(
                f"w_query: expected (width, width) = ({width}, {width}) with "
                "query_key='one-matrix', "
                f"got ({width}, {head_width})"
            )
        return None
    if w_key is None:
        raise ArgumentError("w_key: expected a tensor with query_key='two-matrix', got None")
    key = _check_weight("w_key", w_key, width, x)
    _check_heads("w_key", key, heads)
    if key.shape[2] != head_width:
        raise ArgumentError(
            f"w_key: expected (width, head width) = ({width}, {head_width}) as w_query has, "
            f"got {tuple(w_key.shape)}"
        )
    return key


def _check_scores(x: Tensor, query: Tensor, key: Tensor | None) -> None:
    """Refuse finite inputs and weights so large that scores may overflow."""
    width = x.shape[2]
    sides = (query, torch.eye(width, dtype=x.dtype, device=x.device)[None] if key is None else key)
    longest = [float((x.flatten(0, 1) @ side).norm(dim=-1).amax()) for side in sides]
    # by Cauchy and Schwarz no score is larger; of nan the comparison is false, which refuses it
    if not longest[0] * longest[1] <= torch.finfo(x.dtype).max:
        raise ArgumentError(
            f"x, w_query, w_key: the scores overflow {x.dtype} (largest entry of x: "
            f"{float(x.abs().amax()):.0e}); "
            "scale the input or the weights down"
        )


def _value_or_identity(w_value: Tensor | None, heads: int, x: Tensor) -> Tensor:
    """Check W_V and return it as (G, D, V); identity values are the identity's column blocks."""
    width = x.shape[2]
    if w_value is not None:
        value = _check_weight("w_value", w_value, width, x)
        _check_heads("w_value", value, heads)
        return value
    if width % heads:
        raise ArgumentError(
            f"w_value: identity values need a width divisible by the heads, got width {width} and "
            f"{heads} heads"
        )
    identity = torch.eye(width, dtype=x.dtype, device=x.device)
    return identity.view(width, heads, -1).transpose(0, 1)


def _projection_or_identity(
    w_projection: Tensor | None, heads: int, value_width: int, x: Tensor
) -> Tensor:
    """Check W_O and return it as (H, V, O); without it, the row blocks of the identity."""
    if w_projection is None:
        identity = torch.eye(heads * value_width, dtype=x.dtype, device=x.device)
        return identity.view(heads, value_width, -1)
    projection = _check_weight("w_projection", w_projection, value_width, x)
    if projection.shape[0] != heads:
        raise ArgumentError(
            f"w_projection: expected one (value width, out) matrix for each of the {heads} heads, "
            f"got {tuple(w_projection.shape)}; use w_projection.view(heads, value_width, out)"
        )
    return projection


def _check_heads(name: str, weight: Tensor, heads: int) -> None:
    if heads % weight.shape[0]:
        raise ArgumentError(
            f"{name}: expected {heads} heads as w_query has, or a divisor of that, got "
            f"{weight.shape[0]}"
        )


def _check_weight(name: str, weight: Tensor, rows: int, like: Tensor) -> Tensor:
    """Check a weight of one head, or stacked by head; return it as (heads, rows, columns)."""
    weight = check_tensor(name, weight, like)
    if weight.ndim not in (2, 3) or weight.numel() == 0:
        raise ArgumentError(
            f"{name}: expected (in, out) or (heads, in, out), none of them 0, got "
            f"{tuple(weight.shape)}"
        )
    if weight.shape[-2] != rows:
        hint = f"; did you mean {name}.mT?" if weight.shape[-1] == rows else ""
        raise ArgumentError(
            f"{name}: expected {rows} rows (x @ w convention), got shape "
            f"{tuple(weight.shape)}{hint}"
        )
    return weight if weight.ndim == 3 else weight[None]
