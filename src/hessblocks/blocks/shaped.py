"""Shaped attention (αI + βA − γC) V, without any tokens × tokens buffer of its own.

Letters: B sequences, H heads, T tokens, V value width of a head, C chunks, N tokens of a chunk.

C is A at zero scores: uniform over the keys that a query may attend to. Its product with the values
is a running mean. So the whole is α V + β A V − γ runningmean(V), and A V comes from any fused
attention kernel.

Source: Noci et al. (2023); He & Hofmann (2024), eq. 5.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Gains = tuple[Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]

CHUNK = 16
"""Tokens summed by one small matrix product; the fastest of 16, 32, 64 and of `cumsum` alone."""


def shape_attention(
    attended: Float[Tensor, "B H T V"],
    values: Float[Tensor, "B H T V"],
    middle: Float[Tensor, "B H #T V"] | None,
    gains: Gains,
) -> Float[Tensor, "B H T V"]:
    """Combine A V, V and C V to shaped attention (αI + βA − γC) V.

    Args:
        attended: A V, from any attention kernel.
        values: V, of the queries' own tokens.
        middle: C V; None stands for no centre.
        gains: α, β, γ, each broadcastable to (H, 1, 1).

    Returns:
        The mixed values, as `values` in shape.
    """
    alpha, beta, gamma = gains
    shaped = torch.addcmul(alpha * values, beta, attended)
    return shaped if middle is None else torch.addcmul(shaped, gamma, middle, value=-1)


def centre(
    values: Float[Tensor, "B H T V"], *, causal: bool, allowed: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, "B H #T V"]:
    """Compute C V: for each token the mean of the values that it may attend to.

    Args:
        values: values of all tokens.
        causal: whether a token attends to itself and what stands before it only.
        allowed: False marks padding; None means no padding.

    Returns:
        The means, one for all tokens where `causal` is false; a token with no allowed key gets
        zeros.

    Cost: one pass over the values, no tokens × tokens buffer.
    """
    if causal:
        return _running_mean(values, allowed)
    if allowed is None:
        return values.mean(dim=2, keepdim=True)
    counts = allowed.sum(dim=1).clamp(min=1)[:, None, None, None]
    weights = allowed[:, None, None, :].to(values.dtype) / counts
    return weights @ values


def _running_mean(
    values: Float[Tensor, "B H T V"], allowed: Bool[Tensor, "B T"] | None
) -> Float[Tensor, "B H T V"]:
    tokens, width = values.shape[2:]
    x_BTHV = values.transpose(1, 2)
    if torch.compiler.is_exporting():  # for any number of tokens, which chunks would round up
        kept = x_BTHV if allowed is None else x_BTHV * allowed[..., None, None]
        sums_BTHV = kept.cumsum(dim=1, dtype=torch.promote_types(values.dtype, torch.float32))
    else:
        sums_BCND = _running_sums(
            _chunks(x_BTHV.flatten(2)), None if allowed is None else _chunks(allowed[..., None])
        )
        sums_BTHV = sums_BCND.flatten(1, 2)[:, :tokens].unflatten(2, (-1, width))
    if allowed is None:
        counts_BT = torch.arange(1, tokens + 1, device=values.device)[None]
    else:
        counts_BT = allowed.cumsum(dim=1).clamp(min=1)
    means: Tensor = sums_BTHV.transpose(1, 2) / counts_BT[:, None, :, None]
    return means.to(values.dtype)


def _running_sums(x_BCND: Tensor, allowed_BCN1: Tensor | None) -> Tensor:
    """Sum over the tokens so far: a matrix product in each chunk, `cumsum` over chunks."""
    lower = torch.ones(CHUNK, CHUNK, dtype=x_BCND.dtype, device=x_BCND.device).tril()
    if allowed_BCN1 is not None:
        lower = lower * allowed_BCN1.transpose(-1, -2)
    within = lower @ x_BCND
    # a long running sum in half precision would lose the late tokens
    totals = within[:, :, -1:].to(torch.promote_types(x_BCND.dtype, torch.float32))
    return within + (totals.cumsum(dim=1) - totals)


def _chunks(x: Tensor) -> Tensor:
    """Cut (B, T, ...) into (B, C, N, ...), zeros after the last token."""
    missing = -x.shape[1] % CHUNK
    padded = F.pad(x, (0, 0, 0, missing)) if missing else x
    chunks: Tensor = padded.unflatten(1, (-1, CHUNK))
    return chunks
