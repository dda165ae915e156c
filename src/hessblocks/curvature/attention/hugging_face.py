"""Register tiled attention with transformers, and replace a model's eager attention function.

Letters: B sequences, H heads, T queries, S keys, G key heads, D head width, V value width.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from hessblocks.curvature.attention.call import attend_twice, misfits, second_order_attention
from hessblocks.errors import ArgumentError

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
                f"attn_implementation: {type(module).__name__} gives {name}, which second_order "
                "does not take; use eager or sdpa"
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


def in_place_of(
    default: Callable[..., Any],
    module: nn.Module,
    query: Float[Tensor, "..."],
    key: Float[Tensor, "..."],
    value: Float[Tensor, "..."],
    mask: Shaped[Tensor, "..."] | None = None,
    *,
    noticed: Callable[[], None],
    **others: Any,
) -> tuple[Float[Tensor, "..."], None] | None:
    """Replace a model's eager attention by tiles; the weights are not returned.

    A test with a few random tokens, and all arguments of this call, checks that both agree.

    Args:
        default: the eager function.
        module: module that calls it.
        query: (B, H, T, D).
        key: (B, G, S, D).
        value: (B, G, S, V).
        mask: mask argument of `default`.
        noticed: called when the first derivative is taken with a graph.
        others: other arguments of `default`.

    Returns:
        The attention output (B, T, H, V) and None; or only None if the results differ, the weights
        are wanted, or tiles do not support an argument.
    """
    config = getattr(module, "config", None)
    returns_weights = others.get("output_attentions") or getattr(config, "output_attentions", False)
    if returns_weights or others.get("dropout") or module._forward_hooks or query.ndim != 4:
        return None
    facts = {"softcap": others.get("softcap"), "sinks": others.get("s_aux")}
    accepted = inspect.signature(default).parameters
    if any(isinstance(t, Tensor) and n != "s_aux" and n in accepted for n, t in others.items()):
        return None
    if any(misfits(query, key, value, mask, False, True, **facts)):
        return None
    scale = others.get("scaling")

    def tiles(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        mixed = attend_twice(query, key, value, mask, False, scale, noticed=noticed, **facts)
        return mixed.transpose(1, 2)

    few = _few(query, key, value, mask)
    try:
        with torch.no_grad():
            expected, ours = default(module, *few, **others)[0], tiles(*few)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    near = 1e-5 if query.dtype in (torch.float32, torch.float64) else 5e-2
    if expected.shape != ours.shape or not torch.allclose(expected, ours, rtol=near, atol=near):
        return None
    return tiles(query, key, value, mask), None


def _few(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Draw five queries and keys of one sequence, and a mask like the given one."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, t.shape[1], 5, t.shape[3], generator=draw).to(t) for t in (query, key, value)
    )
    if mask is None:
        return q, k, v, None
    few = torch.ones(1, mask.shape[-3] if mask.ndim > 2 else 1, 5, 5, dtype=torch.bool).tril()
    if mask.dtype != torch.bool:
        few = torch.zeros(few.shape).masked_fill(~few, -2.0).to(mask.dtype)
    return q, k, v, few.to(mask.device)
