"""Entry point of the closed-form attention Hessian: plain tensors in, `AttentionHessian` out.

Letters: B sequences, L tokens, D width, H heads, G key-value heads, K query-key width, V value
width, O output width, C rank of a curvature factor.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hessblocks.errors import ArgumentError, check_name, check_whole
from hessblocks.linalg import MEMORY_LIMIT
from hessblocks.theory import validation as valid
from hessblocks.theory.head_vectors import HeadNorm
from hessblocks.theory.hessian import AttentionHessian
from hessblocks.theory.layer import AttentionLayer
from hessblocks.theory.outer import TokenCurvature


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
    bias: Float[Tensor, "H L L"] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> AttentionHessian:
    """Build the Hessian of a loss in one self-attention layer's weights, in closed form.

        F(X) = Σ_h (α_h X + β_h A_h X − γ_h C X) W_V^h W_O^h,  A_h = softmax(T_h) or T_h,
        T_h = X W_Q^h (X W_K^h)ᵀ / sqrt(K), or X W_QK^h Xᵀ, unscaled, where there is one matrix.

    C is uniform over the permitted keys, or the softmax of a bias. The temperature divides T_h. The
    Gauss-Newton (GGN) split at F is H = H_o + H_f:

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
        gains: (alpha, beta, gamma) of shaped attention, each one number or one per head; they
            become groups of their own. None is plain attention, (0, 1, 0) without gain groups.
        rotary: (cosines, sines) of rotary positions, each (tokens, turned) or (batch, tokens,
            turned). The first `turned` entries of each head's queries and keys turn in pairs (i,
            i + turned/2), as in Llama and GPT-NeoX.
        query_norm: norm of each head's queries before they are turned, such as
            `HeadNorm.rms(gain)`; all heads share it. Its parameters become a group of their own.
        key_norm: the same for keys.
        temperature: τ, above 0, a further divisor of the scores. Without a norm of queries the
            blocks are those of W_Q / τ, divided by τ once for each query or query_key among row and
            column. Their limits are `theory.at_limit`.
        bias: numbers added to the divided scores before softmax, (heads, tokens, tokens), such as
            ALiBi's. A sink is one more token of zeros, with its score as the bias of all queries.
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

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.randn(5, 4), torch.randn(5, 2)  # five tokens
        >>> w_query, w_key, w_value = torch.randn(3, 4, 2)
        >>> hessian = hb.attention_hessian(x, w_query, w_key, w_value, target=y)
        >>> list(hessian.groups), hessian.dense().shape
        (['query', 'key', 'value'], torch.Size([24, 24]))
        >>> hessian.block("value", "value", part="functional").frobenius_norm()  # linear in values
        0.0
    """
    x = valid.check_input(x)
    check_whole(1, memory_limit=memory_limit)
    check_name("scores", scores, ("softmax", "linear"))
    check_name("query_key", query_key, ("two-matrix", "one-matrix"))
    valid.check_temperature(temperature)
    width, one_matrix = x.shape[2], query_key == "one-matrix"
    norms = {"query_norm": query_norm, "key_norm": key_norm}
    query = valid.check_weight("w_query", w_query, x, rows=width)
    heads, _, head_width = query.shape
    key = None
    if one_matrix:
        for name, value in {"w_key": w_key, "rotary": rotary, **norms}.items():
            if value is not None:
                raise ArgumentError(
                    f"{name}: expected None with one matrix (query_key='one-matrix'), which has "
                    f"no queries and keys, got {type(value).__name__}"
                )
        valid.check_shape("w_query: one matrix", query[0], (width, width))
    else:
        key = valid.check_weight("w_key", w_key, x, rows=width, heads=heads)
        if key.shape[2] != head_width:
            raise ArgumentError(
                f"w_key: expected (width, head width) = ({width}, {head_width}) as w_query has, "
                f"got {tuple(key.shape[1:])}"
            )
    value_weight = _identity_values(heads, x) if w_value is None else w_value
    value = valid.check_weight("w_value", value_weight, x, rows=width, heads=heads)
    projection = _checked_projection(w_projection, heads, value.shape[2], x)
    for name, norm in norms.items():
        valid.check_norm(name, norm, query)
    if query_norm is None and key_norm is None:  # normed vectors are short, whatever the inputs
        _check_scores(x, query / temperature, key)
    gain_tensors = valid.check_gains(gains, heads, x)
    if bias is not None:
        if scores == "linear":
            raise ArgumentError("bias: expected None with scores='linear', got a tensor")
        bias = valid.check_tensor("bias", bias, x)[None]
        valid.check_shape("bias", bias[0], (heads, x.shape[1], x.shape[1]))
    differentiated = {
        "query_key" if one_matrix else "query": True,
        "key": w_key is not None,
        "value": w_value is not None,
        "projection": w_projection is not None,
        **{name: norm is not None and len(norm.parameters) > 0 for name, norm in norms.items()},
    }
    layer = AttentionLayer(
        x=x,
        query=query,
        key=key,
        value=value,
        projection=projection,
        permitted=valid.check_mask(mask, x),
        scale=(1.0 if one_matrix else head_width**-0.5) / temperature,
        softmax=scores == "softmax",
        bias=bias,
        gains=gain_tensors,
        rotation=valid.check_rotary(rotary, head_width, x),
        parameters=(*(name for name, there in differentiated.items() if there), *gain_tensors),
        query_norm=query_norm,
        key_norm=key_norm,
        memory_limit=memory_limit,
    )
    gradient, token_curvature = _checked_loss(layer, target, gradient, curvature, curvature_factor)
    return AttentionHessian(layer, gradient=gradient, curvature=token_curvature)


def _check_scores(
    x: Float[Tensor, "B L D"], query: Float[Tensor, "H D K"], key: Float[Tensor, "G D K"] | None
) -> None:
    """Check that the scores of finite inputs and weights cannot overflow."""
    sides = (x @ query[:, None], x if key is None else x @ key[:, None])
    longest = [float(side.norm(dim=-1).amax()) for side in sides]
    # a Cauchy-Schwarz bound on the scores; NaN makes the comparison false and raises, too
    if not longest[0] * longest[1] <= torch.finfo(x.dtype).max:
        raise ArgumentError(
            f"x, w_query, w_key: the scores overflow {x.dtype} (largest entry of x: "
            f"{float(x.abs().amax()):.0e}); scale the input or the weights down"
        )


def _identity_values(heads: int, x: Float[Tensor, "B L D"]) -> Float[Tensor, "H D V"]:
    """Build the W_V that passes the h-th column block of x on: column blocks of the identity."""
    width = x.shape[2]
    if width % heads:
        raise ArgumentError(
            f"w_value: identity values need a width divisible by the heads, got width {width} and "
            f"{heads} heads"
        )
    identity = torch.eye(width, dtype=x.dtype, device=x.device)
    return identity.view(width, heads, -1).transpose(0, 1)


def _checked_projection(
    w_projection: Float[Tensor, "... V O"] | None, heads: int, value_width: int, x: Tensor
) -> Float[Tensor, "H V O"]:
    """Check W_O and return it by head; without it, the row blocks of the identity."""
    if w_projection is None:
        identity = torch.eye(heads * value_width, dtype=x.dtype, device=x.device)
        return identity.view(heads, value_width, -1)
    projection = valid.check_weight("w_projection", w_projection, x, rows=value_width)
    if len(projection) != heads:
        raise ArgumentError(
            f"w_projection: expected one (value width, out) matrix for each of the {heads} heads, "
            f"got {tuple(w_projection.shape)}; use w_projection.view(heads, value_width, out)"
        )
    return projection


def _checked_loss(
    layer: AttentionLayer,
    target: Float[Tensor, "... L O"] | None,
    gradient: Float[Tensor, "... L O"] | None,
    curvature: Float[Tensor, "... L O O"] | None,
    curvature_factor: Float[Tensor, "... L C O"] | None,
) -> tuple[Float[Tensor, "B L O"], TokenCurvature]:
    """Check the loss; return its gradient and the curvature Λ of each token, or of all."""
    out = layer.projection.shape[2]
    if (target is None) == (gradient is None):
        raise ArgumentError(
            "target, gradient: expected one of them: target= for the squared loss, or gradient= "
            f"with curvature= or curvature_factor=; got {'neither' if target is None else 'both'}"
        )
    if target is not None:
        if curvature is not None or curvature_factor is not None:
            raise ArgumentError(
                "curvature: expected None with target= (the squared loss has its own), got a tensor"
            )
        return _squared_loss(layer, valid.check_per_token("target", target, layer.x, out))
    assert gradient is not None
    if (curvature is None) == (curvature_factor is None):
        raise ArgumentError(
            "curvature, curvature_factor: expected one of them with gradient=, got "
            f"{'neither' if curvature is None else 'both'}"
        )
    gradient = valid.check_per_token("gradient", gradient, layer.x, out)
    if curvature is not None:
        curvature = valid.check_per_token("curvature", curvature, layer.x, out, out)
        return gradient, valid.check_curvature(curvature.flatten(0, 1))
    assert curvature_factor is not None
    factor = valid.check_per_token("curvature_factor", curvature_factor, layer.x, -1, out)
    if factor.shape[2] == 0:
        raise ArgumentError(
            "curvature_factor: expected a rank of at least 1, got 0; give a row of zeros "
            "where the loss is linear"
        )
    return gradient, TokenCurvature(factor=factor.flatten(0, 1))


def _squared_loss(
    layer: AttentionLayer, target: Float[Tensor, "B L O"]
) -> tuple[Float[Tensor, "B L O"], TokenCurvature]:
    """Differentiate mean (F − Y)² twice: gradient of every token, one Λ for all of them."""
    difference = layer.output() - target
    if not difference.isfinite().all():
        raise ArgumentError(
            f"x, w_value: the layer's output overflows {target.dtype}; scale the input or the "
            "weights down"
        )
    factor = 2.0 / target.numel()
    identity = torch.eye(target.shape[2], dtype=target.dtype, device=target.device)
    curvature = TokenCurvature(matrix=factor * identity[None], positive_semidefinite=True)
    return factor * difference, curvature
