"""Fit power laws to repeated measurements: slope, confidence interval, and goodness of fit.

Letters: x = ln σ, y = ln value, n measurements in m groups of equal σ, τ² variance of y within a
group in excess of the measurements' errors.

    y = a + b x, weights 1 / (τ² + (standard error / value)²), b the slope.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

CONFIDENCE = 0.95
ROUNDING = 1e-10
"""Smallest relative error of a measurement, also of an exact one."""
BEND = 0.2
"""Change of the local slope over the fitted range that is flagged, if it is significant."""
Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Fit of a power law value ∝ σ^slope, with a flag if it fits badly."""

    slope: float
    """Exponent b."""
    standard_error: float
    """Standard error of the slope."""
    low: float
    """Lower end of its 95 % confidence interval."""
    high: float
    """Upper end of its 95 % confidence interval."""
    smallest: float
    """Smallest σ used."""
    largest: float
    """Largest σ used."""
    measurements: int
    """Number n of measurements; values of exactly 0 are left out."""
    bend: float
    """Change of the local slope from the smallest to the largest σ, from a quadratic fit."""
    flag: str
    """Reason why this is no power law; empty if there is none."""


def fit_growth(
    sigma: Sequence[float], value: Sequence[float], standard_error: Sequence[float | None]
) -> Growth | None:
    """Fit a power law by weighted least squares on logarithms.

    Args:
        sigma: scale of the data, one entry per measurement, above 0.
        value: measured values, at least 0.
        standard_error: standard error of each value; None or 0 for exact values.

    Returns:
        The fit; None with fewer than three different σ among the nonzero values.
    """
    kept = [place for place, v in enumerate(value) if v > 0]
    x = np.log([sigma[place] for place in kept])
    if len(np.unique(x)) < 3:
        return None
    y = np.log([value[place] for place in kept])
    own = np.array([(standard_error[place] or 0.0) / value[place] for place in kept])
    return _fit(x, y, own**2 + ROUNDING**2)


@dataclass(frozen=True, kw_only=True)
class _Means:
    """Mean of y at each σ."""

    x: Vector
    y: Vector
    variance: Vector
    """Variance of each mean."""
    freedom: int
    """Degrees of freedom of the variances; 0 without repeated measurements."""


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """Polynomial fitted to the means."""

    leading: float
    error: float
    """Standard error of the leading coefficient."""
    misfit: float
    """χ² per degree of freedom."""
    spare: int
    """Number of means minus number of coefficients."""


def _fit(x: Vector, y: Vector, own: Vector) -> Growth:
    means = _averaged(x, y, own)
    line, curve = _polynomial(means, degree=1), _polynomial(means, degree=2)
    # if the fit is worse than the repeats explain, the misfit sets the error
    freedom = line.spare if line.misfit > 1 or not means.freedom else means.freedom
    reach = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * line.error
    span = float(x.max() - x.min())
    bend, bend_error = 2 * curve.leading * span, 2 * curve.error * span
    if not (curve.spare or means.freedom) and bool((own <= ROUNDING**2).all()):
        bend_error = math.inf  # three values without errors: a bend cannot be told from noise
    return Growth(
        slope=line.leading,
        standard_error=line.error,
        low=line.leading - reach,
        high=line.leading + reach,
        smallest=float(np.exp(x.min())),
        largest=float(np.exp(x.max())),
        measurements=len(x),
        bend=bend,
        flag=_flag(bend, bend_error, line, means.freedom),
    )


def _averaged(x: Vector, y: Vector, own: Vector) -> _Means:
    """Average y at each σ; estimate variances from the pooled scatter of repeated measurements."""
    at, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    mean = np.bincount(group, y) / counts
    own_mean = np.bincount(group, own) / counts
    freedom = len(x) - len(at)
    between = 0.0
    if freedom:
        pooled = float(((y - mean[group]) ** 2).sum()) / freedom
        between = max(pooled - float(own.mean()), 0.0)
    variance = (between + own_mean) / counts
    return _Means(x=at, y=mean, variance=variance, freedom=freedom)


def _polynomial(means: _Means, degree: int) -> _Curve:
    """Fit by weighted least squares; increase errors if the misfit exceeds them."""
    centred = means.x - np.average(means.x, weights=1 / means.variance)
    design = np.vander(centred, degree + 1) / np.sqrt(means.variance)[:, None]
    scaled = means.y / np.sqrt(means.variance)
    covariance = np.linalg.inv(design.T @ design)
    coefficients = covariance @ (design.T @ scaled)
    spare = len(means.x) - degree - 1
    misfit = float(((scaled - design @ coefficients) ** 2).sum()) / max(spare, 1)
    scale = misfit if spare and not means.freedom else max(misfit, 1.0)
    return _Curve(
        leading=float(coefficients[0]),
        error=math.sqrt(float(covariance[0, 0]) * scale),
        misfit=misfit,
        spare=spare,
    )


def _flag(bend: float, bend_error: float, line: _Curve, freedom: int) -> str:
    """Describe evidence against a power law: a large and significant bend, or scatter."""
    if abs(bend) > max(BEND, 3 * bend_error):
        return f"the slope changes by {bend:+.2f} over the range"
    if freedom and special.fdtrc(line.spare, freedom, line.misfit) < 1e-4:
        return "the means lie off the line by more than their errors"
    return ""
