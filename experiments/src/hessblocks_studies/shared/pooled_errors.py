"""One error for all runs of a table of blocks × seeds: its residual standard deviation.

Letters: y_bs value of block b with seed s, of B blocks and S seeds; r_bs what is left of it beside
the mean of its block, or beside those of its block and of its seed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from scipy import stats

from hessblocks.storage import Scalar

LEVEL = 0.05
"""Chance with which a true null is called wrong."""
Values = Mapping[str, Mapping[Scalar, float]]
"""Block or variant → {seed: value}."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """The standard deviation of one run."""

    deviation: float
    """In the unit of the values: s² = Σ r_bs² / ((B − 1) (S − 1)), or that without the means of
    seeds, Σ r_bs² / (B (S − 1)), where it is larger."""
    freedom: int
    """Its degrees of freedom, (B − 1) (S − 1), the fewer of both."""
    p_value: float
    """Of Bartlett's test that the residuals of all blocks have one variance; 1 of two blocks, whose
    residuals are each other's opposite."""

    @property
    def fits(self) -> bool:
        """Whether one variance fits."""
        return self.p_value >= LEVEL

    def of_gaps(self) -> Self:
        """That of differences of two runs of one seed."""
        return replace(self, deviation=math.sqrt(2) * self.deviation)


def rounded(p_value: float) -> float:
    """To four digits, which are the same on every machine."""
    return float(f"{p_value:.4g}")


def pooled_error(values: Values) -> Residual | None:
    """Pool the residuals of all blocks, each group of blocks with the same seeds by itself.

    What equal seeds have in common helps a comparison only as far as few seeds can show that they
    have it: of more than two blocks the larger of both residuals counts. Of two, it is the error of
    their paired differences.

    Blocks that diverged, have one seed, or the same value with every seed, tell nothing and are
    left out. Brown and Forsythe's test would not do: of three seeds one residual beside the median
    is always 0, and it rejects nothing (0 of 1,500 draws in which one of eight blocks had six times
    the deviation of the others, where Bartlett's rejects 57 %).

    Args:
        values: of each block and seed.

    Returns:
        The error; None where no two blocks have two seeds in common.
    """
    tables: dict[tuple[Scalar, ...], list[list[float]]] = {}
    for each in values.values():
        seeds = tuple(sorted(each, key=str))
        own = [each[seed] for seed in seeds]
        if len(own) > 1 and math.isfinite(sum(own)) and min(own) < max(own):
            tables.setdefault(seeds, []).append(own)
    whole = [rows for rows in tables.values() if len(rows) > 1]
    freedom = sum((len(rows) - 1) * (len(rows[0]) - 1) for rows in whole)
    if not freedom:
        return None
    within = [_centred(row) for rows in whole for row in rows]
    paired = [row for rows in whole for row in _transposed(_transposed(rows))]
    deviation, left = _deviation(paired, freedom), paired
    if len(within) == 2:
        return Residual(deviation=deviation, freedom=freedom, p_value=1.0)
    alone = _deviation(within, sum(len(row) - 1 for row in within))
    if alone >= deviation:
        deviation, left = alone, within
    alike = rounded(float(stats.bartlett(*left).pvalue))
    return Residual(deviation=deviation, freedom=freedom, p_value=alike)


def _deviation(left: list[list[float]], freedom: int) -> float:
    return math.sqrt(math.fsum(one**2 for row in left for one in row) / freedom)


def _centred(values: Sequence[float]) -> list[float]:
    """What is left beside the mean."""
    mean = math.fsum(values) / len(values)
    return [one - mean for one in values]


def _transposed(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """The columns of rows that are centred."""
    return [[*column] for column in zip(*map(_centred, rows), strict=True)]


def error_line(found: Residual | None) -> dict[str, object]:
    """Name the error as a line of a table; its fields are None where there is none."""
    return {
        "standard_deviation_of_a_run": found.deviation if found else None,
        "degrees_of_freedom": found.freedom if found else None,
        "p_value_of_one_variance": found.p_value if found else None,
        "pooled": bool(found and found.fits),
    }
