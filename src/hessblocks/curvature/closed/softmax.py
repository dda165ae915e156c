"""Softmax attention by matrix products, with the second derivative of softmax in closed form.

Letters: S scores; P = softmax(S) row by row; dP the cotangent of P; dS = P ∘ (dP − Σ P ∘ dP) the
cotangent of S; D the cotangent of dS. Sums run along a row.
"""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from hessblocks.curvature.attention import attend_twice, misfits
from hessblocks.curvature.closed.watch import note_derivative

LONG = 512
"""From this many keys on, tiles are as fast as plain products and need less memory (measured)."""

DTYPES = (torch.float32, torch.float64)
"""Dtypes of the plain products; tiles support others too."""


def attention(
    query: Float[Tensor, "... heads tokens width"],
    key: Float[Tensor, "... key_heads others width"],
    value: Float[Tensor, "... key_heads others value_width"],
    attn_mask: Shaped[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute scaled dot-product attention without dropout, by tiles or by plain products.

    Tiles are used for at least `LONG` keys, if the mask needs no gradient.

    Args:
        query: (..., heads, tokens, width).
        key: (..., key heads, others, width).
        value: (..., key heads, others, value width).
        attn_mask: booleans (True: may attend) or numbers added to the scores.
        dropout_p: if above 0, NotImplemented is returned.
        is_causal: whether a token attends only to itself and earlier tokens.
        scale: scale of the scores; 1/√width by default.
        enable_gqa: whether several query heads share a key head.

    Returns:
        (..., heads, tokens, value width), or NotImplemented, which makes the caller call torch.
    """
    if by_tiles(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
        return attend_twice(query, key, value, attn_mask, is_causal, scale, noticed=note_derivative)
    if _torch_alone(attn_mask, dropout_p, is_causal):
        return NotImplemented
    if any(t.dtype not in DTYPES for t in (query, key, value)):
        return NotImplemented
    if enable_gqa:
        shared = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(shared, dim=-3) for t in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * scale) @ key.mT
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores, attn_mask = scores + attn_mask, None
    shares: Tensor = _Softmax.apply(scores, attn_mask, is_causal)
    return shares @ value


def by_tiles(
    query: Float[Tensor, "... heads tokens width"],
    key: Float[Tensor, "... key_heads others width"],
    value: Float[Tensor, "... key_heads others value_width"],
    attn_mask: Shaped[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> bool:
    """Tell whether `attention` uses tiles for these arguments."""
    plain = _torch_alone(attn_mask, dropout_p, is_causal) or key.shape[-2] < LONG
    return not plain and not any(misfits(query, key, value, attn_mask, is_causal, enable_gqa))


def _torch_alone(attn_mask: Tensor | None, dropout_p: float, is_causal: bool) -> bool:
    """Tell whether neither tiles nor plain products support a call."""
    return dropout_p > 0 or (is_causal and attn_mask is not None)


class _Softmax(Function):
    """P as a function of S, with 0 at masked entries."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        masked = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        # a causal mask leaves each row an entry, so that no row needs the check for none
        shares = masked.softmax(-1) if is_causal else torch._safe_softmax(masked, -1)
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        (shares,) = ctx.saved_tensors
        if not torch.is_grad_enabled():
            pulled = torch._softmax_backward_data(cotangents[0], shares, -1, shares.dtype)
            return pulled, None, None
        note_derivative()
        return _SoftmaxBackward.apply(cotangents[0], shares), None, None


class _SoftmaxBackward(Function):
    """dS as a function of dP and P.

    Its gradient by P goes only into `_Softmax.backward`, which subtracts any constant per row. So
    the gradient may be shortened to (D − Σ P ∘ D) ∘ (dP − Σ P ∘ dP).
    """

    @staticmethod
    def forward(ctx: Any, pushed: Tensor, shares: Tensor) -> Tensor:
        centred = _centre(pushed, shares)
        ctx.save_for_backward(shares, centred)
        return shares * centred

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        shares, centred = ctx.saved_tensors
        direction = _centre(cotangents[0], shares)
        return shares * direction, direction.mul_(centred)


def _centre(rows: Tensor, shares: Tensor) -> Tensor:
    """Subtract from each row its mean with the weights `shares`."""
    means: Tensor = torch.linalg.vecdot(shares, rows)
    return rows - means[..., None]
