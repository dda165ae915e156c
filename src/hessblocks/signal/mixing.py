"""Attention mixing: entropy and spectral gap of the matrix that multiplies the values.

For shaped attention that matrix is αI + βA − γC, not the softmax A alone. It has negative entries,
so its entropy is that of the absolute weights.

Letters: B sequences, H heads, T tokens.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def attention_entropy(
    matrix: Float[Tensor, "B H T T"], real: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Compute the mean entropy of a token's absolute weights |m_j| / Σ|m_j|, in nats.

    0: each token takes from one token only, as with the identity. log i: token number i takes from
    all i tokens alike. A token without any weight counts as 0.

    Returns:
        The mean over tokens, heads and sequences.
    """
    weights = matrix.abs()
    shares = weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(matrix.dtype).tiny)
    entropies = torch.special.entr(shares).sum(dim=-1)
    mean: Tensor = (entropies * real[:, None]).sum() / (real.sum() * matrix.shape[1])
    return mean


def spectral_gap(matrix: Float[Tensor, "B H T T"], real: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Compute 1 − s₂/s₁ of the two largest singular values, mean over sequences and heads.

    1: one direction over tokens survives, which is rank collapse in one layer. 0: the first two
    survive alike, as with the identity.

    Returns:
        The gap, 0 to 1.

    Source: Nait Saada et al. (2024), Mind the gap, arXiv 2410.07799.
    """
    kept = matrix * (real[:, None, :, None] & real[:, None, None, :])
    first, second = torch.linalg.svdvals(kept)[..., :2].unbind(dim=-1)
    gap: Tensor = (1 - second / first.clamp(min=torch.finfo(matrix.dtype).tiny)).mean()
    return gap
