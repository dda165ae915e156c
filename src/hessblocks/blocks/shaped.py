"""Shaped attention (αI + βA − γC) V, without an additional tokens × tokens buffer.

Letters: B sequences, H heads, T tokens, V value width of a head, D = H · V, C chunks, N tokens of a
chunk.

C is A at zero scores: uniform over the keys that a query may attend to. C V is thus a running mean
of the values, and shaped attention is α V + β A V − γ runningmean(V). Any fused attention kernel
can compute A V.

Each gain is repeated for all entries of its head: long rows times a vector are three times faster
than short rows times one number each (measured on a CPU, width 64).

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
"""Tokens per matrix product of running sums; 16 is faster than 32, 64 and `cumsum` alone."""


class Counting(NamedTuple):
    """Counts and masks for running means of values; all layers of a forward pass share them."""

    lower: Float[Tensor, "N N"]
    """Ones on and below the diagonal; the product with a chunk gives its running sums."""
    counts: Shaped[Tensor, "#B T 1"]
    """Number of tokens that each token attends to; 1 if there are none."""
    allowed: Bool[Tensor, "B T 1"] | None
    """False marks padding; None means no padding."""

    @classmethod
    def of(cls, values: Float[Tensor, "B H T V"], allowed: Bool[Tensor, "B T"] | None) -> Counting:
        """Compute counts and masks for values of this shape.

        Args:
            values: values of any layer; only shape, dtype and device matter.
            allowed: False marks padding; None means no padding.

        Returns:
            Argument `counting` of `mix_causally` and `running_mean`.
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
        values: V of the query tokens.
        middle: C V; None means no centre.
        gains: α, β, γ.

    Returns:
        The mixed values, in the shape of `values`.
    """
    if values.shape[2] == 1:  # decoding: few numbers, so that each operation counts
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
    cached: Float[Tensor, "B H T V"],
    gains: Gains,
    counting: Counting,
) -> Float[Tensor, "B H T V"]:
    """Compute `shape_attention` for causal attention (C V is `running_mean`) in fewer passes.

    Args:
        attended: A V, from any attention kernel.
        values: V.
        cached: V as a cache returns it, which may round; `values` itself without a cache.
        gains: α, β, γ.
        counting: counts and masks of these tokens.

    Returns:
        The mixed values, in the shape of `values`.
    """
    x_BTD, (alpha, beta, gamma) = _flat(values), _wide(gains, values)
    mixed_BTD = x_BTD if cached is values else _flat(cached)
    if in_one_kernel(values):  # γ goes into the sum, so that the backward pass needs no sums
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        weighted = mixed_BTD if counting.allowed is None else mixed_BTD * counting.allowed
        means = (gamma * weighted).cumsum(dim=1, dtype=wide) / counting.counts
        mixed = alpha * x_BTD + beta * _flat(attended) - means
        return _heads(mixed.to(x_BTD.dtype), values)
    shaped = torch.addcmul(alpha * x_BTD, beta, _flat(attended))
    sums = _sums(mixed_BTD, counting)
    shaped = torch.addcmul(shaped, gamma / counting.counts, sums, value=-1).to(shaped.dtype)
    return _heads(shaped, values)


def in_one_kernel(values: Shaped[Tensor, "..."]) -> bool:
    """Tell whether `torch.compile` makes one kernel of running sum, gains and mixing (on CUDA)."""
    return values.is_cuda and torch.compiler.is_compiling()


def centre(
    values: Float[Tensor, "B H T V"], *, causal: bool, allowed: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, "B H #T V"]:
    """Compute C V: for each token the mean of the values that it may attend to.

    Args:
        values: values of all tokens.
        causal: whether a token attends only to itself and to earlier tokens.
        allowed: False marks padding; None means no padding.

    Returns:
        The means; if `causal` is false, one mean for all tokens. Without allowed keys a mean is 0.

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
    """Compute C V of causal attention with shared counts and masks; see `centre`."""
    sums = _sums(_flat(values), counting)
    return _heads((sums / counting.counts).to(values.dtype), values)


def _sums(x_BTD: Tensor, counting: Counting) -> Tensor:
    """Compute running sums over tokens: a matrix product per chunk, `cumsum` over chunks."""
    allowed = x_BTD if counting.allowed is None else x_BTD * counting.allowed
    wide = torch.promote_types(x_BTD.dtype, torch.float32)
    if torch.compiler.is_exporting():  # chunks would fix the number of tokens up to rounding
        return allowed.cumsum(dim=1, dtype=wide)
    missing = -allowed.shape[1] % CHUNK
    padded = F.pad(allowed, (0, 0, 0, missing)) if missing else allowed
    x_BCND = padded.unflatten(1, (-1, CHUNK))
    # in half precision a long running sum would lose the contributions of late tokens
    totals = x_BCND.sum(dim=2, keepdim=True, dtype=wide)
    within = counting.lower.to(allowed.dtype) @ x_BCND
    sums_BTD: Tensor = (within + (totals.cumsum(dim=1) - totals)).flatten(1, 2)
    # even a slice of all tokens would allocate zeros in the backward pass
    return sums_BTD[:, : allowed.shape[1]] if missing else sums_BTD


def _flat(x_BHTV: Tensor) -> Tensor:
    return x_BHTV.transpose(1, 2).flatten(2)


def _heads(x_BTD: Tensor, like: Tensor) -> Tensor:
    apart: Tensor = x_BTD.unflatten(2, (like.shape[1], -1))
    return apart.transpose(1, 2)


def _wide(gains: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    """Repeat each head's gain for all entries of the head."""
    return gains.expand(-1, -1, values.shape[3], -1).reshape(3, -1).unbind()
