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
from hessblocks.errors import ArgumentError

Kernel = Callable[..., Float[Tensor, "B H T V"]]
"""Attention kernel: computes A V, by whatever way, from the arguments of `fused_kernel`.

Without a mask and with `causal`, query number i attends to keys 0 to i.
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
) -> Float[Tensor, "B H T V"]:
    """Compute softmax attention by `torch.nn.functional.scaled_dot_product_attention`."""
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal and mask is None,  # torch refuses both, and a mask says it all
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


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
    groups = query.shape[1] // key.shape[1]
    scores = scale * query @ key.repeat_interleave(groups, dim=1).transpose(-1, -2)
    permitted = _permitted(scores, mask, causal)
    scores = scores if permitted is None else scores.masked_fill(~permitted, 0.0)
    return scores @ value.repeat_interleave(groups, dim=1)


def _permitted(scores: Tensor, mask: object, causal: bool) -> Tensor | None:
    if mask is None:
        return torch.ones_like(scores, dtype=torch.bool).tril() if causal else None
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
    """Whether `causal` and `allowed` say all that the mask does; False for the user's own mask."""
    rotation: Rotation | None = None
    """Cosines and sines of rotary positions."""
    kernel: Kernel = fused_kernel
    """Computes A V of softmax attention."""

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
