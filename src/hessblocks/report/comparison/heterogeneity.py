"""How uneven curvature is over the parameter groups: the largest norm over the smallest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hessblocks.report.comparison.averages import Average, average, group_norms
from hessblocks.storage import NORM, FolderResults, Measurement


@dataclass(frozen=True, kw_only=True)
class Heterogeneity:
    """Largest over smallest group norm of the full Hessian; 1 is perfectly even."""

    ratio: Average
    """The ratio, averaged over seeds; no unit."""
    largest: str
    """The group with the largest norm (mean over seeds)."""
    smallest: str
    """The group with the smallest norm that is not zero (mean over seeds)."""
    zero_groups: tuple[str, ...]
    """Groups with a norm of exactly 0 in any seed, left out of the ratio."""


def heterogeneity(results: FolderResults, preset: str, stage: str) -> Heterogeneity | None:
    """The heterogeneity of a block before or after training.

    Formula: r = max ‖H_g‖_F / min ‖H_g‖_F over the groups g with ‖H_g‖_F > 0, one ratio a seed.
    With one seed its standard error is r √((s_max / max)² + (s_min / min)²), from those of the
    two norms; with several it is that of the mean over seeds.

    Args:
        results: a run folder.
        preset: the block.
        stage: `initial` or `final`.

    Returns:
        The ratio and the groups behind it; None where no positive finite norm was measured.
    """
    rows = results.select(NORM, preset=preset, stage=stage, part="full")
    seeds = dict.fromkeys(row.seed for row in rows)
    ratios = [
        ratio
        for seed in seeds
        if (ratio := _ratio([row for row in rows if row.seed == seed])) is not None
    ]
    overall = average([ratio for ratio, _ in ratios], ratios[0][1] if ratios else None)
    positive = [g for g in group_norms(results, preset, stage, "full") if g.norm.value > 0]
    if overall is None:
        return None
    return Heterogeneity(
        ratio=overall,
        largest=max(positive, key=lambda g: g.norm.value).group,
        smallest=min(positive, key=lambda g: g.norm.value).group,
        zero_groups=tuple(dict.fromkeys(row.group for row in rows if row.value == 0)),
    )


def _ratio(rows: list[Measurement]) -> tuple[float, float | None] | None:
    """Ratio and standard error of one seed."""
    positive = [row for row in rows if math.isfinite(row.value) and row.value > 0]
    if not positive:
        return None
    largest = max(positive, key=lambda row: row.value)
    smallest = min(positive, key=lambda row: row.value)
    ratio = largest.value / smallest.value
    if largest.standard_error is None or smallest.standard_error is None:
        return ratio, None
    relative = math.hypot(
        largest.standard_error / largest.value, smallest.standard_error / smallest.value
    )
    return ratio, ratio * relative
