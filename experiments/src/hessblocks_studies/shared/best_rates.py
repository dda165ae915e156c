"""Choose the best learning rate of a grid and tell whether the grid encloses it."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from hessblocks.storage import Scalar
from hessblocks_studies.engine import Check

SLACK = 0.02
"""Nats by which another rate may be better without being chosen, if fewer seeds ran at it."""
LONGER = "the best rate is not yet inside the grid, with all seeds, of"
"""Note added to a check if a block's best rate lies at an end of the grid or was not run with all
seeds; the block's name follows."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The best learning rate of a block."""

    best: float
    """Rate with the lowest loss, averaged over the seeds of all rates. If some rates have fewer
    seeds, a rate with all seeds is chosen whose loss is at most `SLACK` above the lowest."""
    settled: bool
    """Whether the loss is finite, the rate has all seeds, and both this rate and the rate of the
    lowest loss lie inside the grid."""
    above_the_lowest: float = 0.0
    """Mean loss at the best rate minus the lowest mean loss, in nats; at most `SLACK`."""


def best_rate(grid: Mapping[float, Mapping[Scalar, float]]) -> Rate:
    """Choose the best rate of one block.

    Args:
        grid: {rate: {seed: last validation loss}}; diverged runs are infinite.

    Returns:
        The rate, and whether the grid encloses it.
    """
    common = set.intersection(*map(set, grid.values()))
    means = {
        rate: statistics.fmean(seeds[seed] for seed in common or seeds)
        for rate, seeds in grid.items()
    }
    longest = max(map(len, grid.values()))
    fewer = min(map(len, grid.values())) < longest
    lowest = min(means, key=lambda rate: means[rate])
    usual = [
        rate
        for rate in means
        if len(grid[rate]) == longest and means[rate] <= means[lowest] + (SLACK if fewer else 0.0)
    ]
    best = min(usual or means, key=lambda rate: means[rate])
    complete = bool(common) and len(grid[best]) == longest and math.isfinite(means[best])
    inside = all(min(grid) < rate < max(grid) for rate in (best, lowest))
    above = means[best] - means[lowest] if complete else 0.0
    return Rate(best=best, settled=complete and inside, above_the_lowest=above)


def at_best_rates(check: Check, rates: Mapping[str, Rate], *names: str) -> Check:
    """Leave a check undecided if a block's best rate is not settled."""
    open_ended = [name for name in names if name in rates and not rates[name].settled]
    if not open_ended:
        return check
    return check.void(f"{LONGER} {', '.join(open_ended)}")
