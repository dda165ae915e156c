"""Call tiled attention with torch's signature, or with that of transformers.

The arguments are checked, and converted to one form.

Letters: B sequences, H heads, G key heads, T queries, S keys, D head width, V value width.
"""

import math
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from hessblocks.curvature.attention.function import attention
from hessblocks.curvature.attention.tiles import Visibility
from hessblocks.errors import ArgumentError


def second_order_attention(
    query: Float[Tensor, "..."],
    key: Float[Tensor, "..."],
    value: Float[Tensor, "..."],
    attn_mask: Shaped[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """Compute softmax attention with two derivatives, in memory linear in the context.

    The arguments are those of `torch.nn.functional.scaled_dot_product_attention`, and more. The
    result is softmax(scale · q kᵀ) v, computed by tiles. Both backward passes recompute the scores;
    the first uses torch's fused kernel if there is one. Supports `torch.autograd.grad` with
    `create_graph=True`, `torch.func.grad`, `jvp` and `vmap`, in any composition of two derivatives.

    Args:
        query: (..., H, T, D); float64, float32, or half precision that is computed in float32.
        key: (..., G, S, D); G = H, or a divisor with `enable_gqa`.
        value: (..., G, S, V).
        attn_mask: broadcastable to (..., H, T, S); booleans (True: may attend) or numbers added to
            the scores. It gets no gradient, and may be combined with `is_causal`.
        dropout_p: must be 0; exists for compatibility of the signature.
        is_causal: whether query i attends only to keys up to i.
        scale: scale of the scores; 1/√D by default.
        enable_gqa: whether several query heads share a key head.
        window: number of keys that a query attends to, up to its own; needs `is_causal`.
        softcap: c of c tanh(score / c), applied before the mask.
        sinks: one score per head that enters the softmax's denominator, but has no value.

    Returns:
        (..., H, T, V); zeros for a query without permitted keys.

    Raises:
        ArgumentError: shapes, heads, mask, window, softcap or sinks do not fit, dropout is not 0,
            or the mask needs a gradient.

    Cost: 2 products of T × S × width in the forward pass, 5 in the backward pass, 12 in the double
        backward pass, 17 with sinks (half of that if causal); memory of the inputs and of one tile.

    Source: tangent of the backward pass of Dao et al. (2022), derived in docs/products.md.

    Examples:
        >>> import torch, hessblocks as hb
        >>> from torch.nn.functional import scaled_dot_product_attention as torch_attention
        >>> query, key, value = torch.randn(3, 1, 2, 6, 4, dtype=torch.float64)
        >>> out = hb.second_order_attention(query, key, value, is_causal=True)
        >>> torch.allclose(out, torch_attention(query, key, value, is_causal=True))
        True
        >>> loss = lambda q: hb.second_order_attention(q, key, value).square().sum()
        >>> torch.func.hessian(loss)(query).shape
        torch.Size([1, 2, 6, 4, 1, 2, 6, 4])
    """
    if dropout_p:
        raise ArgumentError(
            f"dropout_p: expected 0, since the backward pass recomputes tiles; got {dropout_p}"
        )
    facts: dict[str, Any] = {"window": window, "softcap": softcap, "sinks": sinks}
    wrong = next(misfits(query, key, value, attn_mask, is_causal, enable_gqa, **facts), None)
    if wrong is not None:
        raise ArgumentError(wrong)
    return attend_twice(query, key, value, attn_mask, is_causal, scale, **facts)


def attend_twice(
    query: Float[Tensor, "..."],
    key: Float[Tensor, "..."],
    value: Float[Tensor, "..."],
    mask: Shaped[Tensor, "..."] | None,
    causal: bool,
    scale: float | None,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "..."] | None = None,
    noticed: Callable[[], None] | None = None,
) -> Float[Tensor, "..."]:
    """Compute `second_order_attention`; `noticed` is passed on to `Visibility`."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind) and query.dtype == torch.float32:  # as torch's kernel does
        query, key, value = (t.to(torch.get_autocast_dtype(kind)) for t in (query, key, value))
    dtype = query.dtype
    working = torch.promote_types(dtype, torch.float32)
    leading = torch.broadcast_shapes(*(t.shape[:-3] for t in (query, key, value)))
    q, k, v = (
        t.to(working).expand(*leading, *t.shape[-3:]).reshape(-1, *t.shape[-3:])
        for t in (query, key, value)
    )
    visibility = Visibility(
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        causal=causal,
        window=window,
        softcap=softcap,
        mask=None if mask is None else _five_axes(mask, leading, q, k),
        noticed=noticed,
    )
    sink = None if sinks is None else sinks.to(working)[None]
    with torch.autocast(kind, enabled=False):
        out = attention(q, k, v, sink, visibility)
    return out.to(dtype).reshape(*leading, *out.shape[1:])


def _five_axes(mask: Tensor, leading: torch.Size, query: Tensor, key: Tensor) -> Tensor:
    """Reshape a mask to (B or 1, G or 1, R or 1, T, S); several leading axes may need a copy."""
    tokens = (query.shape[2], key.shape[2])
    mask = mask[(None,) * (len(leading) + 3 - mask.ndim)]
    if len(leading) > 1 and any(size > 1 for size in mask.shape[:-3]):
        mask = mask.expand(*leading, *mask.shape[-3:]).flatten(0, len(leading) - 1)
    mask = mask.reshape(-1, *mask.shape[-3:])
    groups = key.shape[1] if mask.shape[1] > 1 else 1
    axes: Tensor = mask.unflatten(1, (groups, -1)).expand(-1, -1, -1, *tokens)
    return axes


def misfits(
    query: Float[Tensor, "..."],
    key: Float[Tensor, "..."],
    value: Float[Tensor, "..."],
    mask: Shaped[Tensor, "..."] | None,
    causal: bool,
    shared: bool,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "..."] | None = None,
) -> Iterator[str]:
    """Yield a sentence for each argument of `second_order_attention` that does not fit."""
    yield from _misfits_of_tensors(query, key, value)
    heads, key_heads = query.shape[-3], key.shape[-3]
    if heads != key_heads and not (shared and heads % key_heads == 0):
        yield (
            f"key: expected {heads} heads as the query has, or a divisor of them and "
            f"enable_gqa=True; got {key_heads}"
        )
    if window is not None and (not isinstance(window, Integral) or window < 1 or not causal):
        yield (
            f"window: expected at least 1 and is_causal=True, got {window} and is_causal={causal}; "
            "another window is a boolean attn_mask"
        )
    if softcap is not None and not 0 < softcap < math.inf:
        yield f"softcap: expected a number above 0, got {softcap}"
    if sinks is not None and tuple(sinks.shape) != (heads,):
        yield f"sinks: expected one a head, ({heads},), got {tuple(sinks.shape)}"
    if mask is not None:
        yield from _misfits_of_mask(mask, (*query.shape[:-1], key.shape[-2]))


def _misfits_of_tensors(query: Tensor, key: Tensor, value: Tensor) -> Iterator[str]:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim < 3 or 0 in tensor.shape:
            yield (
                f"{name}: expected (..., heads, tokens, width), none of them 0; "
                f"got {tuple(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            yield f"{name}: expected floating-point numbers, got {tensor.dtype}; use {name}.float()"
        if tensor.device != query.device:
            yield f"{name}: expected the query's device, {query.device}; got {tensor.device}"
        if tensor.dtype != query.dtype:
            yield f"{name}: expected the query's dtype, {query.dtype}; got {tensor.dtype}"
    if key.shape[-1] != query.shape[-1] or key.shape[-3:-1] != value.shape[-3:-1]:
        yield (
            f"key: expected heads and tokens of the values, {tuple(value.shape[-3:-1])}, and the "
            f"queries' width, {query.shape[-1]}; got {tuple(key.shape[-3:])}"
        )
    try:
        torch.broadcast_shapes(*(t.shape[:-3] for t in (query, key, value)))
    except RuntimeError:
        query_axes, key_axes = tuple(query.shape[:-3]), tuple(key.shape[:-3])
        yield f"key: its axes {key_axes} do not fit the query's {query_axes}"


def _misfits_of_mask(mask: Tensor, scores: tuple[int, ...]) -> Iterator[str]:
    try:
        fits = torch.broadcast_shapes(mask.shape, scores) == scores
    except RuntimeError:
        fits = False
    if not fits or not (mask.dtype == torch.bool or mask.is_floating_point()):
        yield (
            f"attn_mask: expected booleans or floats broadcastable to {scores}, "
            f"got {mask.dtype} {tuple(mask.shape)}"
        )
    if mask.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(mask):
        yield (
            "attn_mask: needs a gradient or is mapped over, and tiles take it as a constant; "
            "detach it, or use torch.nn.functional.scaled_dot_product_attention under "
            "sdpa_kernel(SDPBackend.MATH)"
        )


FOREIGN = ("position_bias", "cache", "head_mask")
"""Arguments of transformers' attention functions that tiles do not support."""


def registered_attention(
    module: nn.Module,
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B G S D"],
    value: Float[Tensor, "B G S V"],
    attention_mask: Shaped[Tensor, "..."] | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " H"] | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "B T H V"], None]:
    """Compute `second_order_attention` with transformers' signature and its masks for sdpa.

    Returns:
        The attention output, and None in place of the weights.

    Raises:
        ArgumentError: an unsupported argument; or see `second_order_attention`.
    """
    for name in FOREIGN:
        if others.get(name) is not None:
            raise ArgumentError(
                f"attn_implementation: {type(module).__name__} passes {name}, which second_order "
                "does not support; use eager or sdpa"
            )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    mixed = second_order_attention(
        query,
        key,
        value,
        attention_mask,
        dropout,
        causal,
        scaling,
        enable_gqa=True,
        softcap=softcap,
        sinks=s_aux,
    )
    return mixed.transpose(1, 2).contiguous(), None
