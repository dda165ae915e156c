"""Shaped attention (αI + βA − γC) V, without any tokens × tokens buffer of its own.

Letters: B sequences, H heads, T tokens, V value width of a head, D = H · V, C chunks, N tokens of a
chunk.

C is A at zero scores: uniform over the keys that a query may attend to. Its product with the values
is a running mean. So the whole is α V + β A V − γ runningmean(V), and A V comes from any fused
attention kernel.

Gains are spread over the entries of their heads: long rows times a vector are three times faster
than short ones times a number each (measured on a CPU, width 64).

Source: Noci et al. (2023); He & Hofmann (2024), eq. 5.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Gains = Float[Tensor, "3 H 1 1"]
"""α, β and γ of each head."""

CHUNK = 16
"""Tokens summed by one small matrix product; the fastest of 16, 32, 64 and of `cumsum` alone."""


class Counting(NamedTuple):
    """What running means are made of besides the values; all layers of a pass share it."""

    lower: Float[Tensor, "N N"]
    """Ones on the diagonal and below, which sum the tokens of a chunk."""
    counts: Shaped[Tensor, "#B T 1"]
    """How many tokens each token sees; 1 where it is none."""
    allowed: Bool[Tensor, "B T 1"] | None
    """False marks padding; None means no padding."""

    @classmethod
    def of(cls, values: Float[Tensor, "B H T V"], allowed: Bool[Tensor, "B T"] | None) -> Counting:
        """Make it for values of that size.

        Args:
            values: any of the pass.
            allowed: False marks padding; None means no padding.

        Returns:
            What `mix_causally` and `running_mean` take.
        """
        if allowed is None:
            counts = torch.arange(1, values.shape[2] + 1, device=values.device)[None]
        else:
            counts = allowed.cumsum(dim=1).clamp(min=1)
        return cls(
            lower=torch.ones(CHUNK, CHUNK, dtype=values.dtype, device=values.device).tril(),
            counts=counts[..., None],
            allowed=None if allowed is None else allowed[..., None],
        )


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
        gains: α, β, γ.

    Returns:
        The mixed values, as `values` in shape.
    """
    if values.shape[2] == 1:  # decoding: few numbers, so that each step counts
        alpha, beta, gamma = gains
        shaped = torch.addcmul(alpha * values, beta, attended)
        return shaped if middle is None else torch.addcmul(shaped, gamma, middle, value=-1)
    alpha, beta, gamma = _wide(gains, values)
    shaped = torch.addcmul(alpha * _flat(values), beta, _flat(attended))
    if middle is not None:
        shaped = torch.addcmul(shaped, gamma, _flat(middle), value=-1)
    return _heads(shaped, values)


def mix_causally(
    attended: Float[Tensor, "B H T V"],
    values: Float[Tensor, "B H T V"],
    gains: Gains,
    counting: Counting,
) -> Float[Tensor, "B H T V"]:
    """Compute `shape_attention` with the `running_mean` of causal attention, in fewer passes.

    Args:
        attended: A V, from any attention kernel.
        values: V.
        gains: α, β, γ.
        counting: of these tokens.

    Returns:
        The mixed values, as `values` in shape.
    """
    x_BTD, (alpha, beta, gamma) = _flat(values), _wide(gains, values)
    shaped = torch.addcmul(alpha * x_BTD, beta, _flat(attended))
    sums = _sums(x_BTD, counting)
    shaped = torch.addcmul(shaped, gamma / counting.counts, sums, value=-1).to(shaped.dtype)
    return _heads(shaped, values)


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
        return running_mean(values, Counting.of(values, allowed))
    if allowed is None:
        return values.mean(dim=2, keepdim=True)
    counts = allowed.sum(dim=1).clamp(min=1)[:, None, None, None]
    weights = allowed[:, None, None, :].to(values.dtype) / counts
    return weights @ values


def running_mean(values: Float[Tensor, "B H T V"], counting: Counting) -> Float[Tensor, "B H T V"]:
    """Compute C V of causal attention, from what all layers share; see `centre`."""
    sums = _sums(_flat(values), counting)
    return _heads((sums / counting.counts).to(values.dtype), values)


def _sums(x_BTD: Tensor, counting: Counting) -> Tensor:
    """Sum over the tokens so far: a matrix product in each chunk, `cumsum` over chunks."""
    kept = x_BTD if counting.allowed is None else x_BTD * counting.allowed
    wide = torch.promote_types(x_BTD.dtype, torch.float32)
    if torch.compiler.is_exporting():  # for any number of tokens, which chunks would round up
        return kept.cumsum(dim=1, dtype=wide)
    missing = -kept.shape[1] % CHUNK
    padded = F.pad(kept, (0, 0, 0, missing)) if missing else kept
    x_BCND = padded.unflatten(1, (-1, CHUNK))
    # a long running sum in half precision would lose the late tokens
    totals = x_BCND.sum(dim=2, keepdim=True, dtype=wide)
    within = counting.lower.to(kept.dtype) @ x_BCND
    sums_BTD: Tensor = (within + (totals.cumsum(dim=1) - totals)).flatten(1, 2)
    # a slice of all would cost a buffer of zeros in the backward pass
    return sums_BTD[:, : kept.shape[1]] if missing else sums_BTD


def _flat(x_BHTV: Tensor) -> Tensor:
    return x_BHTV.transpose(1, 2).flatten(2)


def _heads(x_BTD: Tensor, like: Tensor) -> Tensor:
    apart: Tensor = x_BTD.unflatten(2, (like.shape[1], -1))
    return apart.transpose(1, 2)


def _wide(gains: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    """A gain a head as one an entry."""
    return gains.expand(-1, -1, values.shape[3], -1).reshape(3, -1).unbind()
