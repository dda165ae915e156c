"""Attention kernels: functions that compute A V, and their masks and positions.

Letters: B sequences, T queries, S keys, H heads, G key-value heads, K head width, V value width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.blocks.positions import Rotation
from hessblocks.blocks.shaped import Counting
from hessblocks.errors import ArgumentError

Kernel = Callable[..., Float[Tensor, "B H T V"]]
"""Attention kernel: computes A V, by whatever way, from the arguments of `fused_kernel`.

Without a mask and with `causal`, query number i attends to keys 0 to i. Where attention has them,
it also takes `softcap` and `sinks`, as `matrix_kernel` does.
"""


def fused_kernel(
    module: nn.Module,
    query: Float[Tensor, "B H T K"],
    key: Float[Tensor, "B G S K"],
    value: Float[Tensor, "B G S V"],
    mask: Shaped[Tensor, "... #T S"] | None,
    *,
    scale: float,
    causal: bool,
    **more: Any,
) -> Float[Tensor, "B H T V"]:
    """Compute softmax attention by `torch.nn.functional.scaled_dot_product_attention`.

    That knows neither softcaps nor sinks: with one of them it is `matrix_kernel`.

    Returns:
        A V of each head.
    """
    if more:
        return matrix_kernel(module, query, key, value, mask, scale=scale, causal=causal, **more)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal and mask is None,  # torch refuses both, and a mask says it all
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def matrix_kernel(
    module: nn.Module,
    query: Float[Tensor, "B H T K"],
    key: Float[Tensor, "B G S K"],
    value: Float[Tensor, "B G S V"],
    mask: Shaped[Tensor, "... #T S"] | None,
    *,
    scale: float,
    causal: bool,
    softcap: float | None = None,
    sinks: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, "B H T V"]:
    """Compute softmax attention that builds A; every derivative of it exists.

    Args:
        module: unused.
        query: of the new tokens.
        key: of all tokens.
        value: of all tokens.
        mask: booleans (True: may attend), or numbers added to the scores.
        scale: of the scores.
        causal: whether, without a mask, query number i attends to keys 0 to i.
        softcap: c; the scores are c tanh(score / c), before the mask.
        sinks: score of a further key of each head whose value is zero.

    Returns:
        A V of each head.

    Source: softcaps: Gemma 2 (Gemma Team, 2024, section 2); sinks: GPT-OSS (OpenAI, 2025).
    """
    scores = _scores(query, key, scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is None and causal:
        mask = causal_mask(query, key)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    if sinks is not None:
        beside = sinks[:, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, beside], dim=-1)
    attention = scores.softmax(dim=-1)[..., : key.shape[2]]
    return attention @ value.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


def causal_mask(
    query: Float[Tensor, "B H T K"], key: Float[Tensor, "B G S K"]
) -> Bool[Tensor, "1 1 T S"]:
    """Build the mask by which query number i attends to keys 0 to i."""
    return query.new_ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool).tril()


def linear_kernel(
    module: nn.Module,
    query: Float[Tensor, "B H T K"],
    key: Float[Tensor, "B G S K"],
    value: Float[Tensor, "B G S V"],
    mask: object,
    *,
    scale: float,
    causal: bool,
) -> Float[Tensor, "B H T V"]:
    """Compute linear attention: A holds the scores themselves, and 0 if attention is not permitted.

    Returns:
        A V of each head.

    Raises:
        ArgumentError: the mask is in a form of a kernel for softmax attention.
    """
    scores = _scores(query, key, scale)
    permitted = causal_mask(query, key) if mask is None and causal else _permitted(mask)
    scores = scores if permitted is None else scores.masked_fill(~permitted, 0.0)
    return scores @ value.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    return scale * query @ key.repeat_interleave(groups, dim=1).transpose(-1, -2)


def _permitted(mask: object) -> Tensor | None:
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        raise ArgumentError(
            "attention: scores='linear' has no fused kernel; set attn_implementation to sdpa or "
            "eager"
        )
    # an additive mask has 0 where attention is permitted, and −∞ or nearly so elsewhere
    return mask if mask.dtype == torch.bool else mask == 0


@dataclass(frozen=True, kw_only=True)
class Context:
    """Context of one forward pass, the same for every layer."""

    causal: bool = True
    """Whether a token attends to itself and what stands before it only."""
    mask: Any = None
    """Mask in the form that the kernel understands; None means `causal` says all."""
    windows: Mapping[int, Any] = field(default_factory=dict)
    """Masks of layers with a window, by the number of its tokens."""
    allowed: Bool[Tensor, "B S"] | None = None
    """False marks padding keys; None means no padding."""
    aligned: bool = True
    """Whether `causal` and `allowed` say all that the mask does; False for a bias or own mask."""
    rotation: Rotation | None = None
    """Cosines and sines of rotary positions."""
    bias: Float[Tensor, "#B H T keys"] | None = None
    """What positions add to the scores; the masks hold it already."""
    kernel: Kernel = fused_kernel
    """Computes A V of softmax attention."""
    _counting: list[Counting] = field(default_factory=list)

    def counting(self, values: Float[Tensor, "B H T V"]) -> Counting:
        """Return what running means of values like these are made of, made once a pass."""
        if not self._counting:
            self._counting.append(Counting.of(values, self.allowed))
        return self._counting[0]

    def mask_of(self, window: int | None) -> Any:
        """Return the mask of a layer with this window; None if the layer attends to all tokens.

        Returns:
            It, in the form that the kernel understands.

        Raises:
            ArgumentError: there is none of that window.
        """
        if window is None:
            return self.mask
        if window not in self.windows:
            raise ArgumentError(
                f"windows: expected a mask of attention.window={window}, got those of "
                f"{sorted(self.windows)}"
            )
        return self.windows[window]
