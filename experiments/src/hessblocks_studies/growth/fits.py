"""Fit a power law to the curve of each seed: the slope over seeds with its interval, and the bend.

A seed draws one model and one batch for all σ, which shift its whole curve and leave its slope as
it is. So the scatter of the slopes over seeds is the error.

Letters: x = ln σ, y = ln value, b the slope.

    y = a + b x for each seed, by least squares.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hessblocks.storage import Scalar
from hessblocks_studies.shared import Difference, over_seeds

BEND = 0.2
"""Change of the local slope over the fitted range that is flagged, if it is significant."""
Curve = Mapping[float, float]
"""{x: y} of one seed."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Fit of a power law value ∝ σ^slope, with a flag if it fits badly."""

    slope: float
    """Exponent b, mean over seeds."""
    standard_error: float
    """Standard error of the slope; not a number with one seed."""
    low: float
    """Lower end of its 95 % confidence interval."""
    high: float
    """Upper end of its 95 % confidence interval."""
    seeds: int
    """Number of seeds with a slope."""
    smallest: float
    """Smallest σ used."""
    largest: float
    """Largest σ used."""
    measurements: int
    """Number of measurements; values of exactly 0 are left out."""
    bend: float
    """Change of the local slope from the smallest to the largest σ, from a quadratic fit."""
    flag: str
    """Reason why this is no power law; empty if there is none."""

    @property
    def over_seeds(self) -> Difference:
        """Slope as a mean over seeds, for verdicts."""
        return Difference(mean=self.slope, error=self.standard_error, seeds=self.seeds)

    @property
    def text(self) -> str:
        """Slope, interval or number of seeds, and flag as text."""
        interval = f"[{self.low:.3f}, {self.high:.3f}]" if self.seeds > 1 else "(1 seed)"
        return f"{self.slope:z.3f} {interval}{self.flag and f'; no power law: {self.flag}'}"


def fit_growth(
    sigma: Sequence[float], value: Sequence[float], seed: Sequence[Scalar]
) -> Growth | None:
    """Fit a power law to each seed's curve.

    Args:
        sigma: scale of the data, one entry per measurement, above 0.
        value: measured values, at least 0.
        seed: seed of each measurement.

    Returns:
        The fit; None if no seed has three different σ with nonzero values.
    """
    curves: dict[Scalar, dict[float, float]] = {}
    for size, norm, name in zip(sigma, value, seed, strict=True):
        if norm > 0:
            curves.setdefault(name, {})[math.log(size)] = math.log(norm)
    curves = {name: curve for name, curve in curves.items() if len(curve) > 2}
    if not curves:
        return None

    def fitted(coefficient: Callable[[Curve], float]) -> Difference:
        return over_seeds({name: coefficient(curve) for name, curve in curves.items()})

    slope = fitted(lambda curve: _leading(curve, degree=1))
    bend = fitted(lambda curve: 2 * _leading(curve, degree=2) * (max(curve) - min(curve)))
    bent = slope.known and abs(bend.mean) > max(BEND, 3 * bend.error)
    reach = slope.reach() if slope.known else math.nan
    return Growth(
        slope=slope.mean,
        standard_error=slope.error if slope.known else math.nan,
        low=slope.mean - reach,
        high=slope.mean + reach,
        seeds=slope.seeds,
        smallest=math.exp(min(map(min, curves.values()))),
        largest=math.exp(max(map(max, curves.values()))),
        measurements=sum(map(len, curves.values())),
        bend=bend.mean,
        flag=f"the slope changes by {bend.mean:+.2f} over the range" if bent else "",
    )


def _leading(curve: Curve, degree: int) -> float:
    """Fit a polynomial and return its leading coefficient."""
    return float(np.polyfit(list(curve), list(curve.values()), degree)[0])
