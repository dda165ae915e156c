"""Means over seeds with their standard errors."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hessblocks.storage import NORM, FolderResults, Measurement


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mean over seeds."""

    value: float
    """The mean over the seeds with a finite value."""
    standard_error: float | None
    """Over seeds where there are several; else that of the one measurement, if it has one."""
    seeds: int
    """How many seeds had a finite value."""


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


def average(values: Sequence[float], own_error: float | None = None) -> Average | None:
    """The mean of the finite values, standard error s / √n (s: sample standard deviation).

    Args:
        values: one value a seed.
        own_error: standard error of the measurement itself, used where there is one seed.

    Returns:
        The mean; None where no value is finite.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    mean = math.fsum(finite) / len(finite)
    if len(finite) == 1:
        return Average(value=mean, standard_error=own_error, seeds=1)
    variance = math.fsum((value - mean) ** 2 for value in finite) / (len(finite) - 1)
    return Average(value=mean, standard_error=math.sqrt(variance / len(finite)), seeds=len(finite))


def average_rows(rows: Iterable[Measurement]) -> Average | None:
    """The mean over rows that differ by seed only."""
    finite = [row for row in rows if math.isfinite(row.value)]
    return average([row.value for row in finite], finite[0].standard_error if finite else None)


def group_norms(
    results: FolderResults, preset: str, stage: str, part: str
) -> tuple[GroupNorm, ...]:
    """The norm of each group, averaged over seeds, ordered by layer; non-finite ones left out."""
    rows: dict[str, list[Measurement]] = defaultdict(list)
    for row in results.select(NORM, preset=preset, stage=stage, part=part):
        rows[row.group].append(row)
    norms = [
        GroupNorm(group=group, role=same[0].role, layer=same[0].layer, norm=norm)
        for group, same in rows.items()
        if (norm := average_rows(same)) is not None
    ]
    return tuple(sorted(norms, key=lambda norm: (norm.layer is not None, norm.layer or 0)))
