"""Stored values averaged over seeds: any quantity, group norms, and how uneven those are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from hessblocks.figures import Series
from hessblocks.statistics import Average, Heterogeneity, average, ends
from hessblocks.storage import NORM, FolderResults, ResultRow


@dataclass(frozen=True, kw_only=True)
class GroupNorm:
    """The Frobenius norm of one parameter group's Hessian block."""

    group: str
    """Parameter group, such as `layers.0.attention.query`."""
    role: str
    """Kind of group, such as `query`."""
    layer: int | None
    """Layer from 0; None outside the layers."""
    norm: Average
    """The norm, in nats per token per squared unit of weight."""


def average_rows(rows: Iterable[ResultRow]) -> Average | None:
    """The mean over rows that differ by seed only."""
    finite = [row for row in rows if math.isfinite(row.value)]
    return average([row.value for row in finite], finite[0].standard_error if finite else None)


def averaged(
    name: str, places: Iterable[tuple[float, Average, str]], *, line: bool = True
) -> Series:
    """A series of means with their errors, 0 where there is none.

    Args:
        name: of the series.
        places: abscissa, mean, and what the point is.
        line: whether the points are joined.

    Returns:
        A series with one point for each place.
    """
    found = list(places)
    return Series(
        name=name,
        x=tuple(x for x, _, _ in found),
        y=tuple(mean.value for _, mean, _ in found),
        error=tuple(mean.standard_error or 0.0 for _, mean, _ in found),
        points=tuple(point for _, _, point in found),
        line=line,
    )


def group_norms(
    results: FolderResults, preset: str, stage: str, part: str
) -> tuple[GroupNorm, ...]:
    """The norm of each group, averaged over seeds, ordered by layer; non-finite ones left out."""
    rows: dict[str, list[ResultRow]] = defaultdict(list)
    for row in results.select(NORM, preset=preset, stage=stage, part=part):
        rows[row.group].append(row)
    norms = [
        GroupNorm(group=group, role=same[0].role, layer=same[0].layer, norm=norm)
        for group, same in rows.items()
        if (norm := average_rows(same)) is not None
    ]
    return tuple(sorted(norms, key=lambda norm: (norm.layer is not None, norm.layer or 0)))


def heterogeneity(results: FolderResults, preset: str, stage: str) -> Heterogeneity[Average] | None:
    """Largest over smallest group norm of the full Hessian of a block before or after training.

    One ratio a seed, zero norms left out. With one seed it has the 95 % interval of the estimates, with
    several the standard error of the mean over seeds.

    Args:
        results: a run folder.
        preset: the block.
        stage: `initial` or `final`.

    Returns:
        The mean ratio, and the groups that are largest and smallest in the mean over seeds; None where
        no positive finite norm was measured.
    """
    rows = results.select(NORM, preset=preset, stage=stage, part="full")
    seeds: dict[int, dict[str, tuple[float, float | None]]] = defaultdict(dict)
    for row in rows:
        seeds[row.seed][row.group] = row.value, row.standard_error
    found = [one for norms in seeds.values() if (one := ends(norms)) is not None]
    overall = average([one.ratio for one in found], found[0].standard_error if found else None)
    means = group_norms(results, preset, stage, "full")
    both = ends({one.group: (one.norm.value, None) for one in means})
    if overall is None or both is None:
        return None
    return Heterogeneity(
        ratio=overall,
        low=found[0].low if len(found) == 1 else None,
        high=found[0].high if len(found) == 1 else None,
        largest=both.largest,
        smallest=both.smallest,
        zero_groups=tuple(dict.fromkeys(row.group for row in rows if row.value == 0)),
    )
