"""Many draws of estimated norms whose truth is known, with the errors that estimators state."""

from dataclasses import dataclass

import numpy as np

from hessblocks.statistics import Numbers
from tests.linalg.coverage import LEVELS

DRAWS = 1000
RANKS = (2.0, 6.0, 12.0, 30.0)
"""Directions that carry a block's norm: few make its squares skew, and its stated error noisy."""
NOMINAL = {1: 0.6827, 2: 0.95, 3: 0.9973}
"""Level of the interval that stands for so many errors."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Logarithms of norms (draws, groups), their relative errors, and the true logarithm of the
    ratio."""

    logs: Numbers
    errors: Numbers
    truth: float

    def plain(self) -> tuple[Numbers, Numbers]:
        """The ratio of the estimates as they are, and the error of its two ends."""
        at = np.arange(len(self.logs))
        ends = self.logs.argmax(1), self.logs.argmin(1)
        high, low = (self.logs[at, end] for end in ends)
        return high - low, np.hypot(*(self.errors[at, end] for end in ends))

    def plain_shares(self) -> dict[int, float]:
        """Share of draws with the truth within 1, 2, 3 errors of the plain ratio."""
        ratio, error = self.plain()
        return {
            width: float(np.mean(np.abs(ratio - self.truth) <= width * error)) for width in LEVELS
        }


def squares(probes: int, groups: int, seed: int = 0) -> Numbers:
    """‖A z‖² of blocks of norm 1, (draws, groups, probes): sums of squares of so many
    directions."""
    ranks = np.resize(RANKS, groups)[None, :, None]
    random = np.random.default_rng((seed, probes, groups))
    return random.gamma(ranks / 2, 2 / ranks, (DRAWS, groups, probes))


def norms(drawn: Numbers) -> tuple[Numbers, Numbers]:
    """Logarithm and relative error of √mean, by the formula of `norm_from_squares`."""
    probes, mean = drawn.shape[-1], drawn.mean(-1)
    spread = drawn.var(-1, ddof=1) / mean**2 / probes
    factor = np.sqrt((probes - 1) / (probes - 3))
    return np.log(mean) / 2, 0.5 * np.sqrt(spread) * (1 + 3 * spread) * factor


def simulated(places: Numbers, probes: int) -> Simulated:
    """Estimates of norms whose true logarithms are given."""
    logs, errors = norms(squares(probes, len(places)))
    return Simulated(logs=logs + places, errors=errors, truth=float(np.ptp(places)))


def spread_over(decades: float, groups: int) -> Numbers:
    """Logarithms of norms evenly spread, in no order."""
    places = np.linspace(0.0, decades * np.log(10), groups)
    return np.random.default_rng(1).permutation(places)
