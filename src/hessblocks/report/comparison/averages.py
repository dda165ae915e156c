"""Stored values averaged over seeds: any quantity, group norms, and how uneven those are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from hessblocks.figures import Series
from hessblocks.statistics import Average, Heterogeneity, average, ends
from hessblocks.storage import NORM, FolderResults, Metric, Observation, ResultRow

Line = Metric | Observation


def average_rows(rows: Iterable[ResultRow]) -> Average | None:
    """The mean over rows that differ by seed only."""
    finite = [row for row in rows if math.isfinite(row.value)]
    return average([row.value for row in finite], finite[0].standard_error if finite else None)


def averaged(
    name: str, places: Iterable[tuple[float, Average | ResultRow]], *, line: bool = True
) -> Series:
    """A series of means with their errors, 0 where there is none.

    Args:
        name: of the series.
        places: abscissa and mean of each point.
        line: whether the points are joined.

    Returns:
        A series with one point for each place.
    """
    found = list(places)
    return Series(
        name=name,
        x=tuple(x for x, _ in found),
        y=tuple(mean.value for _, mean in found),
        error=tuple(mean.standard_error or 0.0 for _, mean in found),
        line=line,
    )


def curve(name: str, rows: Iterable[Line], x: str, y: str) -> Series:
    """One point a step: the mean of each seed's rows, then over seeds.

    Args:
        name: of the series.
        rows: values along training; those that are not finite are left out.
        x: the field of a row that is its abscissa.
        y: the field that is its ordinate. With one seed its errors are those of independent estimates.

    Returns:
        A series over the steps, in order.
    """
    steps: dict[int, dict[int, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if math.isfinite(getattr(row, y)):
            steps[row.step][row.seed].append(row)
    places = []
    for _, seeds in sorted(steps.items()):
        own = list(seeds.values())
        errors = [error for row in own[0] if (error := getattr(row, "standard_error", None))]
        error = math.hypot(*errors) / len(own[0]) if errors else None
        mean = average([_mean(seed, y) for seed in own], error)
        assert mean is not None, "only finite values were collected"
        places.append((fmean(_mean(seed, x) for seed in own), mean))
    return averaged(name, places)


def _mean(rows: Sequence[Line], field: str) -> float:
    """Not a number where a row does not say."""
    return fmean(math.nan if (one := getattr(row, field)) is None else one for row in rows)


def group_norms(results: FolderResults, preset: str, stage: str, part: str) -> list[ResultRow]:
    """The norm of each group, averaged over seeds, ordered by layer; non-finite ones left out."""
    rows: dict[str, list[ResultRow]] = defaultdict(list)
    for row in results.select(NORM, preset=preset, stage=stage, part=part):
        rows[row.group].append(row)
    norms = [
        replace(same[0], value=norm.value, standard_error=norm.standard_error)
        for same in rows.values()
        if (norm := average_rows(same)) is not None
    ]
    return sorted(norms, key=lambda norm: (norm.layer is not None, norm.layer or 0))


def heterogeneity(results: FolderResults, preset: str, stage: str) -> Heterogeneity[Average] | None:
    """Largest over smallest group norm of the full Hessian of a block before or after training.

    One ratio a seed, zero norms left out, and none of a seed with a norm that is no number. With one seed
    it has the 95 % interval of the estimates, with several the standard error of the mean over seeds.

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
    whole = [norms for norms in seeds.values() if all(math.isfinite(n) for n, _ in norms.values())]
    found = [one for norms in whole if (one := ends(norms)) is not None]
    overall = average([one.ratio for one in found], found[0].standard_error if found else None)
    means = group_norms(results, preset, stage, "full")
    both = ends({one.group: (one.value, None) for one in means})
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
