"""Choose the best learning rate of a grid, and say whether a better one may lie beyond it."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from hessblocks.storage import Scalar
from hessblocks_studies.engine import Check

SLACK = 0.02
"""Nats that one seed may end lower at another rate without that being the better one."""
LONGER = "the best rate is not yet inside the grid, with all seeds, of"
"""Behind the numbers where a block might train better at a rate that was not tried with every seed;
it follows."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The best learning rate of a block."""

    best: float
    """That of the lowest loss, averaged over the seeds that every rate was measured with; where
    others have fewer seeds, a rate with all of them that is no more than `SLACK` above."""
    settled: bool
    """Whether its loss is finite, it was measured with as many seeds as any, and both it and the
    rate of the lowest loss lie between two others."""
    above_the_lowest: float = 0.0
    """Nats by which the lowest mean lies below that of the best; at most `SLACK`."""


def best_rate(grid: Mapping[float, Mapping[Scalar, float]]) -> Rate:
    """The best rate of one block.

    Args:
        grid: {rate: {seed: last validation loss}}; diverged runs are infinite.

    Returns:
        The rate, with what is known of its rivals.
    """
    common = set.intersection(*map(set, grid.values()))
    means = {
        rate: statistics.fmean(seeds[one] for one in common or seeds)
        for rate, seeds in grid.items()
    }
    most = max(map(len, grid.values()))
    fewer = min(map(len, grid.values())) < most
    lowest = min(means, key=lambda rate: means[rate])
    usual = [
        rate
        for rate in means
        if len(grid[rate]) == most and means[rate] <= means[lowest] + (SLACK if fewer else 0.0)
    ]
    best = min(usual or means, key=lambda rate: means[rate])
    whole = bool(common) and len(grid[best]) == most and math.isfinite(means[best])
    inside = all(min(grid) < rate < max(grid) for rate in (best, lowest))
    above = means[best] - means[lowest] if whole else 0.0
    return Rate(best=best, settled=whole and inside, above_the_lowest=above)


def at_best_rates(check: Check, rates: Mapping[str, Rate], *names: str) -> Check:
    """Leave a check undecided where one of several rates tried is best, but not inside the grid."""
    open_ended = [one for one in names if one in rates and not rates[one].settled]
    if not open_ended:
        return check
    return check.void(f"{LONGER} {', '.join(open_ended)}")
