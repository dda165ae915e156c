"""Student's t, Fisher's F and rank correlation, as scipy computes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

EXACT = 8
"""Most pairs whose orders are all tried."""
SURE = 0.05
"""Probability under independence below which a correlation counts."""


def student_quantile(probability: float, freedom: float) -> float:
    """The t with P(T ≤ t) = `probability` for Student's T of `freedom` degrees."""
    return float(special.stdtrit(freedom, probability))


def fisher_tail(ratio: float, above: float, below: float) -> float:
    """P(F > ratio) for Fisher's F of `above` and `below` degrees of freedom."""
    return float(special.fdtrc(above, below, max(ratio, 0.0)))


@dataclass(frozen=True, kw_only=True)
class RankCorrelation:
    """Spearman's coefficient of pairs."""

    value: float
    """ρ, from −1 to 1; nan where all of one side are equal."""
    probability: float
    """Of a coefficient as far from 0 were the two sides independent."""
    pairs: int
    """How many."""

    def agrees(self) -> bool | None:
        """Whether it is clearly positive; None where it is not clear either way."""
        return self.value > 0 if self.probability < SURE else None

    def __str__(self) -> str:
        """For tables."""
        return f"Spearman's ρ = {self.value:+.2f}, p = {self.probability:.2g}, {self.pairs} pairs"


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> RankCorrelation:
    """Spearman's rank correlation, with the exact probability of few pairs.

    Args:
        x: at least three values.
        y: as many.

    Returns:
        The coefficient, and how probable one as far from 0 is by chance.

    >>> print(rank_correlation([1, 2, 3, 4], [10, 30, 20, 40]))
    Spearman's ρ = +0.80, p = 0.33, 4 pairs
    """
    found = stats.spearmanr(x, y)
    value, probability = float(found.statistic), float(found.pvalue)
    if len(x) <= EXACT and math.isfinite(value):
        one, other = (ranks - ranks.mean() for ranks in (stats.rankdata(x), stats.rankdata(y)))
        every = np.array(list(itertools.permutations(one))) @ other
        probability = float(np.mean(np.abs(every) >= abs(one @ other) - 1e-9))
    return RankCorrelation(value=value, probability=probability, pairs=len(x))
