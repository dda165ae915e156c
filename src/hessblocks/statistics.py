"""Statistics of plain numbers: means with standard errors, and heterogeneity of norms.

Standard errors of means are s / √n, with s the sample standard deviation of n values.

Heterogeneity is the largest norm over the smallest non-zero one, with an interval.
The largest of noisy estimates is too large on average, the smallest too small: 24 equal norms, 16
probes each, look uneven by 2.5 of the plain errors. So the largest true norm is estimated by a
test, and likewise the smallest. Suppose that the largest true norm is t, and that every group with
an estimate above t has the true norm t. How probable is it that some estimate exceeds t by as many
errors as the farthest one does? The estimate of t has probability 1/2. The lower bound of t has a
small probability.

Letters: x_i logarithm of an estimated norm, e_i its relative standard error, t logarithm of the
true end, F the logistic distribution of variance 1. Its tails are about those of Student's t with 9
degrees of freedom (Mudholkar and George 1978), since few probes know their own error badly.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

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


RatioValue = TypeVar("RatioValue")
Numbers = NDArray[np.float64]

LEVEL = 0.95
"""Confidence level of the interval."""
STEEPNESS = math.pi / math.sqrt(3)
"""F(u) = 1 / (1 + exp(−π u / √3)) has variance 1."""
ROUNDING = 1e-9
"""Relative errors below this are rounding: the norm is exact."""
HALVINGS = 50
FAR = 20.0
"""Standard errors below the lowest estimate at which the search for t begins."""


@dataclass(frozen=True, kw_only=True)
class Heterogeneity(Generic[RatioValue]):
    """Heterogeneity: largest over smallest group norm; the type of `ratio` has its error."""

    ratio: RatioValue
    """Largest over smallest norm; no unit. 1 is perfectly even, 0 means that every norm is zero."""
    low: float | None = None
    """Lower end of the 95 % interval, at least 1; None if a norm has no error."""
    high: float | None = None
    """Upper end of the interval; both ends are the ratio if it is exact."""
    largest: str
    """Group with the largest norm; empty if every norm is zero."""
    smallest: str
    """Group with the smallest norm that is not zero; empty if every norm is zero."""
    zero_groups: tuple[str, ...] = ()
    """Groups whose norm is exactly 0, left out of the ratio."""

    @property
    def standard_error(self) -> float | None:
        """Quarter of the interval's width, as a single number for the error; 0 if exact."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 4

    def __str__(self) -> str:
        """Print the ratio, its interval, and the two groups."""
        if not self.largest:
            return "every norm is zero"
        number = getattr(self.ratio, "value", self.ratio)
        between = "" if self.low is None else f" (95 % interval {self.low:.3g} to {self.high:.3g})"
        zeros = f"; exactly zero: {len(self.zero_groups)}" if self.zero_groups else ""
        return f"{number:.3g} times{between}: {self.largest} over {self.smallest}{zeros}"

    def __repr__(self) -> str:
        """Print the same line."""
        return str(self)


def ends(
    norms: Mapping[str, tuple[float, float | None]], level: float = LEVEL
) -> Heterogeneity[float] | None:
    """Find the largest and smallest positive finite norm, and their ratio with an interval.

    The ratio is corrected for the bias of choosing the extremes.

    A norm with a large error is not left out: its estimated square is not 0, so the norm is not 0,
    and the interval is wide accordingly.

    Args:
        norms: name → norm ≥ 0 and its standard error; 0: exact; None: not known.
        level: confidence level of the interval.

    Returns:
        Both groups and the ratio, without zero groups; None if no norm is positive and finite. If
        an error is not known, there is no interval, and the ratio is not corrected.
    """
    positive = {name: norm for name, norm in norms.items() if 0 < norm[0] < math.inf}
    if not positive:
        return None
    largest = max(positive, key=lambda name: positive[name][0])
    smallest = min(positive, key=lambda name: positive[name][0])
    ratio = positive[largest][0] / positive[smallest][0]
    errors = [e / norm for norm, e in positive.values() if e is not None and math.isfinite(e)]
    if len(errors) < len(positive):
        return Heterogeneity(ratio=ratio, largest=largest, smallest=smallest)
    logs = np.log([norm for norm, _ in positive.values()])
    corrected, low, high = map(float, np.exp(log_ratio(logs, np.array(errors), level)))
    # exact norms have the error ROUNDING in the computation, which is removed here
    if high < low * (1 + 10 * ROUNDING):
        corrected = low = high = ratio
    return Heterogeneity(ratio=corrected, low=low, high=high, largest=largest, smallest=smallest)


def log_ratio(logs: Numbers, errors: Numbers, level: float) -> tuple[Numbers, Numbers, Numbers]:
    """Estimate the logarithm of the largest over the smallest norm, and its interval.

    The estimate is t_max − t_min, each of probability ½. The lower end subtracts the root of the
    summed squared distances of both to their values of probability α = (1 − level) / 2 (Zou and
    Donner 2008). The upper end is max_ij x_i − x_j + F⁻¹(1 − α) √(e_i² + e_j²). It is below the
    truth only if the difference of the true extreme pair is wrong by that much. All three are at
    least 0.

    Args:
        logs: logarithms of the estimates, shape (..., groups).
        errors: relative standard errors, of the same shape.
        level: confidence level of the interval.

    Returns:
        Estimate, lower end, upper end, each of shape (...).
    """
    from scipy.special import logit  # its import takes a third of a second

    alpha = (1 - level) / 2
    errors = np.maximum(errors, ROUNDING)
    top, bottom = _end(logs, errors, 0.5), -_end(-logs, errors, 0.5)
    down, up = top - _end(logs, errors, alpha), -_end(-logs, errors, alpha) - bottom
    joint = np.hypot(errors[..., :, None], errors[..., None, :])
    pairs = logs[..., :, None] - logs[..., None, :] - joint * logit(alpha) / STEEPNESS
    pairs = np.where(np.eye(logs.shape[-1], dtype=bool), 0.0, pairs)
    estimate = top - bottom
    low = np.maximum(estimate - np.hypot(down, up), 0.0)
    return np.maximum(estimate, 0.0), low, np.maximum(pairs.max((-2, -1)), 0.0)


def _end(logs: Numbers, errors: Numbers, chance: float) -> Numbers:
    """Find the t that some group exceeds as far as the farthest did with probability `chance`.

    With z_i = (x_i − t) / e_i the probability at t is 1 − Π_i F(max_j z_j − min(z_i, 0)). It is
    almost 0 far below all x_i, and ½ or more at the largest x_i. So `chance` must be at most ½.

    Returns:
        t, found by bisection.
    """
    from scipy.special import expit

    low: Numbers = (logs - FAR * errors).min(-1)
    high: Numbers = logs.max(-1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        z = (logs - middle[..., None]) / errors
        apart = z.max(-1, keepdims=True) - np.minimum(z, 0.0)
        often = 1 - expit(STEEPNESS * apart).prod(-1) > chance
        low, high = np.where(often, low, middle), np.where(often, middle, high)
    return high
