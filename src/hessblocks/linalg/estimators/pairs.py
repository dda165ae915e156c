"""U-statistics of block norms: ‖A_ij‖_F of A = F Fᵀ from inner products of samples g = F ε.

No product with A is made.

Letters: G groups, B batches of samples, S samples of a batch, U = ‖A_ij‖_F², K_i = F_iᵀF_i.

The samples g_s = F ε_s have E g gᵀ = A. So for s ≠ t the product of (g_sⁱ·g_tⁱ) and (g_sʲ·g_tʲ) has
the mean tr K_i K_j = ‖A_ij‖_F². The mean over all pairs of a batch is a U-statistic. Hoeffding's
decomposition and the fourth moments of ε bound its variance. For entries of ε that are ±1, for
every block i, j (and with equality for normal entries),

    Var ≤ 4 (S−2) / (S (S−1)) · ζ₁ + 2 / (S (S−1)) · ζ₂,   ζ₁ = tr K_i²K_j² + tr K_iK_jK_iK_j,
    ζ₂ = U_ii U_jj + U_ij² + 4 tr K_i²K_j² + 2 tr K_iK_jK_iK_j.

Each trace has an unbiased estimate of its own: the mean over walks s → t → u → v → s through four
samples.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.linalg.estimators.estimates import Estimate
from hessblocks.linalg.operators import unit_of

FEWEST_SAMPLES = 8
"""Fewest samples per batch with enough pairs and walks for an error bar."""
SKEW = 2.0
"""Factor that widens the error bar if few directions dominate, chosen together with the factor for
few samples; see docs/estimators.md."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PairNorms:
    """Frobenius norms of all blocks, with their errors."""

    values: Float[Tensor, "G G"]
    """‖A_ij‖_F; negative if the estimate of the square is, which means 0 within the error."""
    standard_errors: Float[Tensor, "G G"]
    """Standard error of each value."""
    off_diagonal_share: Estimate
    """Share of the off-diagonal blocks in ‖A‖_F²."""
    samples: int
    """Number of samples, S · B."""

    def norm(self, row: int, column: int) -> Estimate:
        """Return the norm of one block."""
        return Estimate(
            value=float(self.values[row, column]),
            standard_error=float(self.standard_errors[row, column]),
            probes=self.samples,
            method="sampled",
        )


def norms_from_pairs(grams: Float[Tensor, "G B S S"]) -> PairNorms:
    """Estimate all G² block norms from the samples' inner products, group by group.

    The squared estimates are unbiased. Let ρ = Var / U², at most 1, w the share of ζ₁ in the
    variance and n = S B. The bar of a square is √Var · (1 + 2 ρ w) · √((n−1)/(n−6)). The bar of the
    norm is the longer way from the root to the roots of both ends of that bar; an end below zero
    counts as zero. The factor 1 + 2 ρ w is for the skewness where few directions dominate: the
    variance is then estimated low just when the norm is.

    Args:
        grams: g_sⁱ·g_tⁱ by group and batch of samples; the diagonals are not used. Batches are
            independent, and pairs are taken within them.

    Returns:
        Norms, errors, and the share off the diagonal.

    Raises:
        ArgumentError: fewer than 8 samples in a batch.

    Cost: G² S³ B operations.

    Source: Hoeffding (1948) for the variance of a U-statistic.
    """
    batches, size = grams.shape[1], grams.shape[2]
    if size < FEWEST_SAMPLES:
        raise ArgumentError(f"samples: expected at least {FEWEST_SAMPLES} in a batch, got {size}")
    # the product of a sample with itself is biased: drop the diagonals
    hollow = grams.double() * (1 - torch.eye(size, dtype=torch.float64, device=grams.device))
    every = torch.cat([hollow, hollow.sum(0, keepdim=True)])
    # fourth powers of small numbers underflow even in float64
    units = [unit_of(matrices) for matrices in every]
    unit = torch.tensor(units, dtype=torch.float64, device=grams.device)
    squares, crossed, walked = _moments(every / unit[:, None, None, None])
    few = math.sqrt((batches * size - 1) / (batches * size - 6))
    single, paired = 4 * (size - 2), 2.0
    scale = size * (size - 1) * batches
    norms = squares.diagonal()
    first = single / scale * (crossed + walked)
    second = norms[:, None] * norms + squares.square() + 4 * crossed + 2 * walked
    variance = first + paired / scale * second
    tiny = torch.finfo(torch.float64).tiny
    skewed = (variance / squares.square().clamp(min=tiny)).clamp(max=1) * first
    errors = variance.sqrt() * (1 + SKEW * skewed / variance.clamp(min=tiny)) * few
    spread = single / scale * 2 * crossed
    spread = spread + paired / scale * (2 * squares.square() + 4 * crossed + 2 * walked)
    roots = unit.sqrt()[:-1]
    return PairNorms(
        values=_root(squares)[:-1, :-1] * roots[:, None] * roots,
        standard_errors=_error_of_root(squares, errors)[:-1, :-1] * roots[:, None] * roots,
        off_diagonal_share=_off_diagonal(squares, spread, unit / unit[-1], few, batches * size),
        samples=batches * size,
    )


def _moments(hollow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Estimate tr K_iK_j, tr K_i²K_j² and tr K_iK_jK_iK_j without bias, from hollow (G, B, S, S).

    Walks that visit a sample twice before their end are subtracted.

    Returns:
        The traces, (G, G) each, the last two at least 0.
    """
    groups, batches, size, _ = hollow.shape
    pairs = size * (size - 1) * batches
    walks = pairs * (size - 2) * (size - 3)
    flat, double = hollow.flatten(1), (hollow @ hollow).flatten(1)
    twice = hollow.square().flatten(1)
    rows = hollow.square().sum(-1).flatten(1)
    returning = double.new_zeros(groups, groups)
    walked = double.new_zeros(groups, groups)
    for first in range(groups):
        joint = hollow[first] @ hollow[first:]
        walked[first, first:] = (joint * joint.mT).sum((1, 2, 3))
        returning[first, first:] = (hollow[first] * hollow[first:]).sum(-1).square().sum((1, 2))
    returning, walked = (
        upper + upper.triu(diagonal=1).T for upper in (returning.triu(), walked.triu())
    )
    both = twice @ twice.T
    crossed = (double @ double.T - rows @ rows.T - returning + both) / walks
    walked = (walked - 2 * returning + both) / walks
    crossed = crossed.clamp(min=0)
    # tr K_iK_jK_iK_j ≤ tr K_i²K_j² by Cauchy-Schwarz, which noisy estimates may violate
    return flat @ flat.T / pairs, crossed, torch.minimum(walked.clamp(min=0), crossed)


def _root(squares: Tensor) -> Tensor:
    return squares.sign() * squares.abs().sqrt()


def _error_of_root(squares: Tensor, errors: Tensor) -> Tensor:
    """Compare a root with the roots of both ends of its bar; return the larger distance."""
    low, high = ((squares + side * errors).clamp(min=0).sqrt() for side in (-1, 1))
    root = _root(squares)
    return torch.maximum(root - low, high - root)


def _off_diagonal(
    squares: Tensor, spread: Tensor, units: Tensor, few: float, samples: int
) -> Estimate:
    """Estimate 1 − Σ_i U_ii / U with the delta method.

    The last row and column are those of the whole matrix, whose unit is 1.

    Returns:
        The share, with its error.
    """
    total = float(squares[-1, -1])
    if total == 0:
        return Estimate(value=0.0, probes=samples, method="sampled")
    units = torch.where(squares.diagonal() != 0, units, 0.0)
    share = float((squares.diagonal() * units.square())[:-1].sum()) / total
    weights = units.square()
    weights[-1] = -share
    error = float((weights @ spread @ weights).clamp(min=0).sqrt()) / total * few
    return Estimate(value=1 - share, standard_error=error, probes=samples, method="sampled")
