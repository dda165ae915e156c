"""Means and their standard errors s / √n, with s the sample standard deviation of n values."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Total = Callable[[Iterable[float]], float]
"""Function that adds values: `sum` in order, as in stored studies, or the exact `math.fsum`."""


@dataclass(frozen=True, kw_only=True)
class Average:
    """Mean over seeds."""

    value: float
    """Mean over the seeds with a finite value."""
    standard_error: float | None
    """Standard error over several seeds; for one seed that of its measurement, or None."""
    seeds: int
    """Number of seeds with a finite value."""


def mean_and_error(values: Sequence[float], total: Total = sum) -> tuple[float, float]:
    """Compute mean and standard error s / √n.

    The error is NaN for a single value, or if a value is not finite.

    Args:
        values: one or more values.
        total: function that adds them.

    Returns:
        Mean and standard error, in the unit of the values.
    """
    mean = total(values) / len(values)
    if len(values) < 2 or not math.isfinite(mean):
        return mean, math.nan
    return mean, (variance(values, total) / len(values)) ** 0.5


def variance(values: Sequence[float], total: Total = sum) -> float:
    """Compute the sample variance Σ (x − x̄)² / (n − 1) of n ≥ 2 finite values."""
    mean = total(values) / len(values)
    return total((value - mean) ** 2 for value in values) / (len(values) - 1)


def average(values: Iterable[float], own_error: float | None = None) -> Average | None:
    """Average the finite values, with a standard error.

    Args:
        values: one value per seed.
        own_error: standard error of a measurement, used if there is only one seed.

    Returns:
        The mean; None if no value is finite.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    mean, error = mean_and_error(finite, math.fsum)
    if len(finite) == 1:
        return Average(value=mean, standard_error=own_error, seeds=1)
    return Average(value=mean, standard_error=error, seeds=len(finite))
