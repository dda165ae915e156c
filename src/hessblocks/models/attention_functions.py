"""Adapt Hugging Face's attention functions (sdpa, eager, flash, flex) and masks to the blocks.

Letters: B sequences, H heads, T queries, S keys, G key-value heads, K head width,
V value width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hessblocks.blocks import Kernel, causal_mask, matrix_kernel
from hessblocks.errors import ArgumentError


def attention_kernel(implementation: str) -> Kernel:
    """Return transformers' attention function of that name, with the signature that blocks call.

    sdpa supports neither softcaps nor sinks: for these, `eager_attention` replaces it.

    Returns:
        The kernel; it raises `ArgumentError` for an unsupported softcap or sink.
    """
    function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)

    def kernel(
        module: nn.Module,
        *tensors: Any,
        scale: float,
        causal: bool,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        query, key, value, mask = tensors
        key, value = key.to(query.dtype), value.to(query.dtype)  # autocast skips identity values
        called, extras = function, {"softcap": softcap, "s_aux": sinks}
        extras = {name: value for name, value in extras.items() if value is not None}
        if extras:
            check_support(implementation, "attention.softcap or attention.sink", WITH_EXTRAS)
        if extras and implementation == "sdpa":
            called = ALL_ATTENTION_FUNCTIONS.get_interface("eager", eager_attention)
            mask = causal_mask(query, key) if mask is None and causal else mask
        attended = called(
            module, query, key, value, mask, scaling=scale, is_causal=causal, **extras
        )[0]
        mixed: Tensor = attended.transpose(1, 2)
        return mixed

    return kernel


def eager_attention(
    module: nn.Module,
    query: Float[Tensor, "B H T K"],
    key: Float[Tensor, "B G S K"],
    value: Float[Tensor, "B G S V"],
    mask: Shaped[Tensor, "#B #H T S"] | None,
    scaling: float,
    softcap: float | None = None,
    s_aux: Float[Tensor, " H"] | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "B T H V"], None]:
    """Compute softmax attention with the whole matrix A, with transformers' signature.

    See `matrix_kernel`.

    Returns:
        A V as (B, T, H, V), and None in place of A.
    """
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap, "sinks": s_aux}
    mixed = matrix_kernel(module, query, key, value, mask, causal=False, **options)
    return mixed.transpose(1, 2), None


WITH_EXTRAS = ("sdpa", "eager", "second_order")
"""Attention functions for layers with a softcap or a sink; `eager` replaces sdpa."""
WITH_MASKS = ("sdpa", "eager", "flex_attention", "second_order")
"""Attention functions that use a mask, and so support a window."""


def check_support(implementation: str | None, feature: str, supporting: Sequence[str]) -> None:
    """Refuse an attention function that does not support a feature of a block.

    Raises:
        ArgumentError: it is not one of `supporting`.
    """
    if implementation not in supporting:
        raise ArgumentError(
            f"attn_implementation: {implementation} does not support {feature}; use "
            f"{' or '.join(supporting)}"
        )


def check_mask(
    mask: Shaped[Tensor, "..."] | None, rows: tuple[int, int], heads: int, cache: Cache | None
) -> None:
    """Check the shape and the entries of a mask.

    Nothing is checked while a model is compiled.

    Args:
        mask: mask argument of the model.
        rows: number of sequences, and of new tokens per sequence.
        heads: number of heads.
        cache: keys and values of earlier tokens.

    Raises:
        ArgumentError: a wrong shape, dtype or value; the message names it and what is expected.
    """
    if not isinstance(mask, Tensor):
        return
    if mask.ndim == 4:
        _check_entries(mask)
    if torch.compiler.is_compiling():
        return
    sequences, tokens = rows
    length = longest = tokens
    if cache is not None:
        length += int(cache.get_seq_length())
        longest = max(length, cache.get_mask_sizes(tokens, 0)[0])
    shape = tuple(mask.shape)
    if len(shape) == 2:
        fits = shape[0] == sequences and length <= shape[1] <= longest
    else:
        sizes = ((1, sequences), (1, heads), (1, tokens), range(length, longest + 1))
        fits = len(shape) == 4 and all(n in fit for n, fit in zip(shape, sizes, strict=True))
    if not fits:
        cached = "" if cache is None else ", the tokens in past_key_values among them,"
        raise ArgumentError(
            f"attention_mask: expected ({sequences}, {length}){cached} with 0 at padding, or your "
            f"own mask, ({sequences}, 1, {tokens}, {length}), got {shape}"
        )


def _check_entries(mask: Tensor) -> None:
    """Refuse floating-point ones and zeros, which would be added to the scores."""
    if mask.dtype == torch.bool:
        return
    got = str(mask.dtype)
    if mask.is_floating_point():
        if torch.compiler.is_compiling() or not (mask > 0).any():
            return
        got = f"{mask.max().item():g}"
    raise ArgumentError(
        "attention_mask: expected booleans, or numbers of at most 0 to add to the scores, in a "
        f"mask of four axes, got {got}; if 1 marks what may be attended to, give mask.bool()"
    )


def with_bias(mask: Any, bias: Float[Tensor, "#B H T S"] | None, *, causal: bool) -> Any:
    """Add a position bias, such as ALiBi's, to a mask.

    Args:
        mask: booleans, numbers, a mask of flex attention, or None (see `causal`).
        bias: finite numbers to add to the scores; None: no bias.
        causal: whether, without a mask, a token attends only to itself and earlier ones.

    Returns:
        Numbers to add to the scores; `mask` if there is no bias.
    """
    if bias is None:
        return mask
    if mask is None and causal and bias.shape[-2] > 1:  # a single last token attends to all keys
        mask = bias.new_ones(bias.shape[-2:], dtype=torch.bool).tril()
    if mask is None or mask.dtype != torch.bool:
        return bias if mask is None else mask + bias
    return bias.masked_fill(~mask, torch.finfo(bias.dtype).min)


def real_tokens(
    mask: Shaped[Tensor, "#sequences ..."] | None,
) -> Bool[Tensor, "#sequences keys"] | None:
    """Return True at tokens and False at padding; None without a mask of two axes."""
    if mask is None or mask.ndim != 2:
        return None
    return mask.bool()


def has_own_mask(
    mask: Shaped[Tensor, "#sequences ..."] | None,
    position_ids: Int[Tensor, "#sequences tokens"] | None,
) -> bool:
    """Tell whether the mask may be the user's, or one of packed sequences.

    Other masks are causal or full, with padding. transformers finds packed sequences in a row where
    positions restart.

    Returns:
        True if that cannot be excluded.
    """
    if mask is None:
        return position_ids is not None
    return mask.ndim != 2


def starts_again(
    position_ids: Int[Tensor, "#sequences tokens"], mask: Shaped[Tensor, "#sequences ..."] | None
) -> bool:
    """Tell whether positions of unpadded tokens restart; False with a mask of four axes."""
    if mask is not None and mask.ndim != 2:
        return False
    restarts = position_ids.diff(dim=-1) < 1
    real = real_tokens(mask)
    if real is not None:
        real = real[:, -position_ids.shape[1] :]
        restarts = restarts & real[:, 1:] & real[:, :-1]
    return bool(restarts.any())
