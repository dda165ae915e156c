"""Token similarity and rank collapse: cosines, stable rank, size and kurtosis of token vectors.

The attention matrix here is the matrix that multiplies the values. For shaped attention this is
αI + βA − γC, not the softmax A. It has negative entries, so that its entropy is that of the
absolute weights.

Letters: B sequences, H heads, T tokens, D width; x are the vectors, real is False at padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from jaxtyping import Bool, Float
from torch import Tensor

COLLAPSED = 0.99
"""If the mean cosine between different tokens is larger, they count as one direction."""


@dataclass(frozen=True, kw_only=True)
class TokenSignal:
    """Similarity, stable rank, size and kurtosis of all tokens' vectors at one depth."""

    token_similarity: float
    """Mean cosine between different tokens of a sequence, −1 to 1; 1 is rank collapse."""
    stable_rank: float
    """‖X‖²_F / ‖X‖²_2 of a sequence's token matrix, mean over sequences; 1 is rank collapse."""
    norm: float
    """Root mean square of the entries."""
    kurtosis: float
    """Kurtosis of the entries' root mean squares: 1 if all are equal, D if only one is nonzero."""


def token_signal(x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> TokenSignal:
    """Measure the vectors of the unpadded tokens.

    The kurtosis is mean(s⁴) / mean(s²)², with s_j the root mean square of entry j over tokens.

    Returns:
        The measured values of this layer.

    Source: token similarity and rank as in Dong et al. (2021); kurtosis as in He et al. (2024),
        arXiv 2405.19279, equation 2.

    Examples:
        >>> alike = token_signal(torch.ones(1, 3, 4), torch.ones(1, 3, dtype=torch.bool))
        >>> round(alike.token_similarity, 3), round(alike.stable_rank, 3)
        (1.0, 1.0)
    """
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32)) * real[..., None]
    squares = x.square().sum(dim=(0, 1)) / real.sum()
    spectral = torch.linalg.matrix_norm(x, ord=2)
    return TokenSignal(
        token_similarity=float(_similarities(x, real).mean()),
        stable_rank=float((x.square().sum(dim=(1, 2)) / spectral.square()).mean()),
        norm=float(squares.mean().sqrt()),
        kurtosis=float(squares.square().mean() / squares.mean().square()),
    )


def _similarities(x: Tensor, real: Tensor) -> Float[Tensor, " B"]:
    """Average cosines: Σ_{s≠t} cos(x_s, x_t) = ‖Σ_t x̂_t‖² − tokens, by the number of pairs."""
    directions = torch.nn.functional.normalize(x, dim=-1)
    tokens = real.sum(dim=1)
    together = directions.sum(dim=1).square().sum(dim=-1)
    squares = directions.square().sum(dim=(1, 2))
    similarities: Tensor = (together - squares) / (tokens * (tokens - 1)).clamp(min=1)
    return similarities


def rank_collapse(similarities: Sequence[float], *, above: float = COLLAPSED) -> int | None:
    """Find the layer from which on the token similarity stays above a threshold.

    Args:
        similarities: mean cosine between tokens after each layer, in order.
        above: the threshold.

    Returns:
        The layer, counted from 0; None where the last layer still tells tokens apart.

    Source: rank collapse as in Dong et al. (2021), arXiv 2103.03404; the threshold is ours.

    Examples:
        >>> rank_collapse([0.2, 0.995, 0.4, 0.995, 0.999])
        3
    """
    collapsed = sum(
        1 for _ in takewhile(lambda similarity: similarity > above, reversed(similarities))
    )
    return len(similarities) - collapsed if collapsed else None


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
    real_entries = matrix * (real[:, None, :, None] & real[:, None, None, :])
    first, second = torch.linalg.svdvals(real_entries)[..., :2].unbind(dim=-1)
    gap: Tensor = (1 - second / first.clamp(min=torch.finfo(matrix.dtype).tiny)).mean()
    return gap
