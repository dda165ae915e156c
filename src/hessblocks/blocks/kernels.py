"""Attention kernels, which compute A V, and the context of a forward pass (masks, positions).

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
"""Attention kernel: a function that computes A V from the arguments of `matrix_kernel`.

Kernels that support neither softcaps nor sinks may omit these two arguments.
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
    **options: Any,
) -> Float[Tensor, "B H T V"]:
    """Compute softmax attention by `torch.nn.functional.scaled_dot_product_attention`.

    Call `matrix_kernel` for a softcap or sinks, which torch's function does not support.

    Returns:
        A V of each head.
    """
    if options:
        return matrix_kernel(module, query, key, value, mask, scale=scale, causal=causal, **options)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal and mask is None,  # torch refuses both; masks already include causality
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
    """Compute softmax attention with an explicit matrix A, so that all derivatives exist.

    Args:
        module: attention module; not used.
        query: queries of the new tokens.
        key: keys of all tokens.
        value: values of all tokens.
        mask: booleans (True: may attend), or numbers added to the scores; None: no mask.
        scale: factor of the scores.
        causal: if True and `mask` is None, query i attends only to keys 0 to i.
        softcap: c, where c tanh(score / c) replaces each score before masking; None: no softcap.
        sinks: score of each head's sink, an additional key with value zero; None: no sinks.

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
        columns = sinks[:, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, columns], dim=-1)
    attention = scores.softmax(dim=-1)[..., : key.shape[2]]
    return attention @ value.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


def causal_mask(
    query: Float[Tensor, "B H T K"], key: Float[Tensor, "B G S K"]
) -> Bool[Tensor, "1 1 T S"]:
    """Build the causal mask: query i attends to keys 0 to i."""
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
    """Compute linear attention: A is the matrix of scores, 0 where the mask forbids attention.

    The mask has 4 dimensions: booleans (True: may attend) or numbers (0: may attend).

    Returns:
        A V of each head.

    Raises:
        ArgumentError: the mask has another form; some fused softmax kernels use such masks.
    """
    scores = _scores(query, key, scale)
    permitted = causal_mask(query, key) if mask is None and causal else _permitted(mask)
    scores = scores if permitted is None else scores.masked_fill(~permitted, 0.0)
    return scores @ value.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Compute scaled scores; each key head serves a group of query heads."""
    groups = query.shape[1] // key.shape[1]
    return scale * query @ key.repeat_interleave(groups, dim=1).transpose(-1, -2)


def _permitted(mask: object) -> Tensor | None:
    """Convert a mask to booleans, True where a query may attend."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        raise ArgumentError(
            "attention: scores='linear' has no fused kernel; set attn_implementation to sdpa or "
            "eager"
        )
    # an additive mask is 0 where a query may attend, elsewhere −∞ or a large negative number
    return mask if mask.dtype == torch.bool else mask == 0


@dataclass(frozen=True, kw_only=True)
class Context:
    """Masks, positions and kernel of one forward pass, shared by all layers."""

    causal: bool = True
    """Whether each token attends only to itself and to earlier tokens."""
    mask: Any = None
    """Mask in the kernel's format; None: only `causal` applies."""
    windows: Mapping[int, Any] = field(default_factory=dict)
    """Masks of sliding windows, keyed by window length in tokens."""
    allowed: Bool[Tensor, "B S"] | None = None
    """False marks padding keys; None: no padding."""
    aligned: bool = True
    """True if `causal` and `allowed` describe the mask; False with a bias or a user's mask."""
    rotation: Rotation | None = None
    """Cosines and sines of rotary positions."""
    bias: Float[Tensor, "#B H T keys"] | None = None
    """Positional bias of the scores (ALiBi); the masks already include it."""
    kernel: Kernel = fused_kernel
    """Kernel of softmax attention."""
    _counting: list[Counting] = field(default_factory=list)
    """Cached result of `counting`; a list, since the class is frozen."""

    def counting(self, values: Float[Tensor, "B H T V"]) -> Counting:
        """Return counts and masks for running means of values, computed once per pass."""
        if not self._counting:
            self._counting.append(Counting.of(values, self.allowed))
        return self._counting[0]

    def mask_of(self, window: int | None) -> Any:
        """Return the mask of a layer.

        Args:
            window: length of the layer's sliding window in tokens; None: no window.

        Returns:
            The mask in the kernel's format; None: only `causal` applies.

        Raises:
            ArgumentError: the context has no mask for a window of this length.
        """
        if window is None:
            return self.mask
        if window not in self.windows:
            raise ArgumentError(
                f"windows: expected a mask of attention.window={window}, got those of "
                f"{sorted(self.windows)}"
            )
        return self.windows[window]
