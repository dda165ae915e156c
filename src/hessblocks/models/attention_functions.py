"""Adapt Hugging Face's attention functions (sdpa, eager, flash, flex) to the blocks.

Letters: B sequences, H heads, T queries, S keys, G key-value heads, K head width,
V value width.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hessblocks.blocks import Kernel


def attention_kernel(implementation: str) -> Kernel:
    """Look up the softmax attention of that name, in the form that the blocks call."""
    function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)

    def kernel(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scale: float,
        causal: bool,
    ) -> Tensor:
        key, value = key.to(query.dtype), value.to(query.dtype)  # identity values miss autocast
        attended: Tensor = function(
            module, query, key, value, mask, scaling=scale, is_causal=causal
        )[0]
        return attended.transpose(1, 2)

    return kernel


def eager_attention(
    module: nn.Module,
    query: Float[Tensor, "B H T K"],
    key: Float[Tensor, "B G S K"],
    value: Float[Tensor, "B G S V"],
    mask: Shaped[Tensor, "#B #H T S"] | None,
    scaling: float,
    **_: Any,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H T S"]]:
    """Compute softmax attention that builds A; every derivative of it exists.

    Returns:
        A V as (B, T, H, K), and A.
    """
    groups = query.shape[1] // key.shape[1]
    scores = scaling * query @ key.repeat_interleave(groups, dim=1).transpose(-1, -2)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    attention = scores.softmax(dim=-1)
    mixed = attention @ value.repeat_interleave(groups, dim=1)
    return mixed.transpose(1, 2), attention
