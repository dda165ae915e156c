"""Estimate the standard deviation of one run from all residuals of a table of blocks × seeds.

Letters: y_bs value of block b with seed s, B blocks, S seeds; r_bs residual of y_bs after the block
means are subtracted, or the means of blocks and of seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from hessblocks.storage import Scalar

LEVEL = 0.05
"""Significance level: probability of a decision against a true null hypothesis."""
Values = Mapping[str, Mapping[Scalar, float]]
"""Block or variant → {seed: value}."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Standard deviation of one run."""

    deviation: float
    """Standard deviation in the unit of the values: s² = Σ r_bs² / ((B − 1) (S − 1)) or, if larger,
    s² = Σ r_bs² / (B (S − 1)) with residuals from the block means alone."""
    freedom: int
    """Degrees of freedom, (B − 1) (S − 1), the smaller of the two estimates' numbers."""
    p_value: float
    """p-value of Bartlett's test that all blocks have the same variance; 1 for two blocks, whose
    residuals differ only in sign."""

    @property
    def fits(self) -> bool:
        """Whether the blocks are consistent with one common variance."""
        return self.p_value >= LEVEL


def rounded(p_value: float) -> float:
    """Round to four significant digits, which are the same on every machine."""
    return float(f"{p_value:.4g}")


def pooled_error(values: Values) -> Residual | None:
    """Pool the residuals of blocks; blocks with different sets of seeds are centred separately.

    Seeds have an effect that all blocks share, but few seeds estimate it poorly. With more than two
    blocks the larger of both residual variances is therefore used; with two blocks, the variance
    of their paired differences.

    Blocks that diverged, have one seed or have equal values for all seeds are left out. The test is
    Bartlett's, not Brown and Forsythe's: with three seeds one residual from the median is always 0,
    and that test rejects nothing (0 of 1,500 draws in which one of eight blocks had six times the
    deviation of the others, where Bartlett's rejects 57 %).

    Args:
        values: values of each block and seed.

    Returns:
        The error; None if no two blocks have two seeds in common.
    """
    tables: dict[tuple[Scalar, ...], list[list[float]]] = {}
    for by_seed in values.values():
        seeds = tuple(sorted(by_seed, key=str))
        losses = [by_seed[seed] for seed in seeds]
        if len(losses) > 1 and math.isfinite(sum(losses)) and min(losses) < max(losses):
            tables.setdefault(seeds, []).append(losses)
    complete = [rows for rows in tables.values() if len(rows) > 1]
    freedom = sum((len(rows) - 1) * (len(rows[0]) - 1) for rows in complete)
    if not freedom:
        return None
    within = [_centred(row) for rows in complete for row in rows]
    paired = [row for rows in complete for row in _transposed(_transposed(rows))]
    deviation, left = _deviation(paired, freedom), paired
    if len(within) == 2:
        return Residual(deviation=deviation, freedom=freedom, p_value=1.0)
    alone = _deviation(within, sum(len(row) - 1 for row in within))
    if alone >= deviation:
        deviation, left = alone, within
    alike = rounded(float(stats.bartlett(*left).pvalue))
    return Residual(deviation=deviation, freedom=freedom, p_value=alike)


def _deviation(left: list[list[float]], freedom: int) -> float:
    return math.sqrt(math.fsum(value**2 for row in left for value in row) / freedom)


def _centred(values: Sequence[float]) -> list[float]:
    """Subtract the mean."""
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def _transposed(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Centre each row, then transpose."""
    return [[*column] for column in zip(*map(_centred, rows), strict=True)]


def error_line(residual: Residual | None) -> dict[str, object]:
    """Convert the error to a row of a table; fields are None if there is no error."""
    return {
        "standard_deviation_of_a_run": residual.deviation if residual else None,
        "degrees_of_freedom": residual.freedom if residual else None,
        "p_value_of_one_variance": residual.p_value if residual else None,
        "pooled": bool(residual and residual.fits),
    }
