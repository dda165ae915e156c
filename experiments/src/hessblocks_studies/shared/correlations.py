"""Spearman's rank correlation over blocks of several families, with a bootstrap interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from hessblocks_studies.engine import Check
from hessblocks_studies.shared.pooled_errors import rounded

DRAWS = 400
"""Bootstrap draws; the bootstrap's standard error is then known to about 4 %."""

FEWEST = 5
"""Smallest number of families with an interval: with four, a perfect order has a probability of
8 % by chance."""


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's rank correlation over blocks, with its interval."""

    value: float
    """ρ of the means over seeds, from −1 to 1; nan if all values of x or of y are equal."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""
    blocks: int
    """Number of blocks."""
    families: int
    """Number of families of blocks; families are independent of each other."""
    p_value: float | None = None
    """Two-sided p-value of no correlation; None if unknown."""

    def agrees(self) -> bool | None:
        """Whether ρ is positive; None if the interval contains 0 or is unknown."""
        return self.value > 0 if self.low > 0 or self.high < 0 else None

    def __str__(self) -> str:
        """Format the correlation for tables."""
        among = "" if self.families == self.blocks else f" of {self.families} families"
        return (
            f"Spearman's ρ = {self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}], {self.blocks} "
            f"blocks{among}"
        )


def correlation(
    x: Mapping[str, Mapping[Any, float]],
    y: Mapping[str, Mapping[Any, float]],
    families: Mapping[str, str] | None = None,
) -> Correlation | None:
    """Compute Spearman's rank correlation over blocks; related blocks form families.

    The bootstrap draws whole families with replacement, and seeds: the same seeds for x, y and all
    blocks, since equal seeds see equal data. z = artanh ρ is approximately normal. The interval is
    z ± t s, with s the standard deviation of z over the draws and t the quantile of Student's t
    with one degree of freedom less than families. |ρ| is clipped to 1 − 1/n² for n blocks. The
    tests measure the coverage: at least 95 % for 5 blocks and for 16 blocks in 6 families; a
    bootstrap that treats these 16 as independent covers 90 %.

    Args:
        x: block → {seed: value}.
        y: the same, infinite if a run diverged (ranked last); only blocks and seeds in both x and y
            are used.
        families: block → its family; None if no two blocks are related.

    Returns:
        The correlation and its interval, −1 to 1 if there are too few families; None with fewer
        than three blocks.
    """
    seeds = {block: sorted(x[block].keys() & y[block].keys(), key=str) for block in x if block in y}
    seeds = {block: own for block, own in seeds.items() if own}
    if len(seeds) < 3:
        return None
    counts = np.array([len(own) for own in seeds.values()])
    pairs = np.zeros((len(seeds), counts.max(), 2))
    for place, (block, own) in enumerate(seeds.items()):
        pairs[place, : len(own)] = [[x[block][seed], y[block][seed]] for seed in own]
    names = [(families or {}).get(block, block) for block in seeds]
    groups = [np.flatnonzero(np.array(names) == one) for one in dict.fromkeys(names)]
    there = np.arange(counts.max()) < counts[:, None]

    def spearman(blocks: NDArray[np.int64], columns: NDArray[np.int64]) -> float:
        """Compute ρ of chosen blocks with chosen seeds."""
        kept = np.where(there[blocks][..., None], pairs[blocks[:, None], columns], 0.0)
        return _spearman(kept.sum(axis=1) / counts[blocks][:, None])

    every = np.arange(len(seeds))
    value = spearman(every, np.broadcast_to(np.arange(counts.max()), there.shape))
    generator = np.random.default_rng(0)
    most = 1 - 1 / len(seeds) ** 2

    def turned(rho: float) -> float:
        return math.atanh(min(max(rho, -most), most))

    found = []
    for _ in range(DRAWS):
        drawn = generator.integers(len(groups), size=len(groups))
        blocks = np.concatenate([groups[place] for place in drawn])
        columns = (generator.random(counts.max()) * counts[blocks][:, None]).astype(np.int64)
        if math.isfinite(rho := spearman(blocks, columns)):
            found.append(turned(rho))
    low, high, p_value = -1.0, 1.0, None
    if len(groups) >= FEWEST and math.isfinite(value):
        spread = float(np.std(found, ddof=1))
        reach = float(special.stdtrit(len(groups) - 1, 0.975)) * spread
        away = math.inf if value and not spread else abs(turned(value)) / (spread or 1.0)
        p_value = rounded(2 * float(special.stdtr(len(groups) - 1, -away)))
        low, high = (math.tanh(turned(value) + side * reach) for side in (-1, 1))
        low, high = min(low, value), max(high, value)
    return Correlation(
        value=value,
        low=low,
        high=high,
        blocks=len(seeds),
        families=len(groups),
        p_value=p_value,
    )


def correlation_check(
    x: Mapping[str, Mapping[Any, float]],
    y: Mapping[str, Mapping[Any, float]],
    fact: str,
    *,
    expected: str,
    told: Mapping[str, Sequence[str]],
    families: Mapping[str, str] | None = None,
) -> Check:
    """Judge whether two values increase together over blocks; false if one decreases.

    Args:
        x: block → {seed: value}.
        y: the same, infinite if a run diverged.
        fact: the fact, as a sentence.
        expected: the expected direction.
        told: note → affected blocks or runs; the notes follow the coefficient.
        families: block → its family; None if no two blocks are related.

    Returns:
        The check; undecided if the interval contains 0 or there are fewer than three blocks.
    """
    found = correlation(x, y, families)
    notes = [f"{what}: {' / '.join(which)}" for what, which in told.items() if which]
    ours = "; ".join([str(found) if found else "fewer than three blocks", *notes])
    holds, p_value = (found.agrees(), found.p_value) if found else (None, None)
    return Check(fact=fact, expected=expected, ours=ours, holds=holds, p_value=p_value)


def _spearman(pairs: NDArray[np.float64]) -> float:
    """Compute ρ of rows (x, y); nan if x or y is constant."""
    one, other = (ranks - ranks.mean() for ranks in stats.rankdata(pairs.T, axis=1))
    size = math.sqrt((one @ one) * (other @ other))
    return float(one @ other) / size if size else math.nan
