"""The comparison as plain data: rows for the tables, and the JSON summary."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from hessblocks.report.comparison.averages import average_rows, heterogeneity
from hessblocks.report.comparison.budget import matched, steps_of
from hessblocks.statistics import Average, Heterogeneity
from hessblocks.storage import NORM, FolderResults, ResultRow


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One block of the comparison; None stands for what is not measured yet."""

    preset: str
    """Name of the block."""
    seeds: tuple[int, ...]
    """Seeds with any value."""
    parameters: int | None
    """Trainable numbers."""
    tokens_per_second: Average | None
    """Training speed."""
    peak_memory: Average | None
    """Bytes."""
    initial_loss: Average | None
    """Validation loss before training, nats per token."""
    final_loss: Average | None
    """Validation loss after training, nats per token; over the seeds that did not diverge."""
    before: Heterogeneity[Average] | None
    """Heterogeneity at initialisation."""
    after: Heterogeneity[Average] | None
    """Heterogeneity after training."""
    diverged: tuple[int, ...]
    """Seeds whose loss became infinite or not a number."""


def comparison_rows(results: FolderResults) -> tuple[ComparisonRow, ...]:
    """One row a block, in the order in which they were asked for."""
    return tuple(_row(results, preset) for preset in results.presets)


def _row(results: FolderResults, preset: str) -> ComparisonRow:
    def over_seeds(quantity: str, stage: str = "") -> Average | None:
        return average_rows(results.select(quantity, preset=preset, stage=stage))

    parameters = over_seeds("parameters")
    return ComparisonRow(
        preset=preset,
        seeds=_seeds(results, preset),
        parameters=round(parameters.value) if parameters else None,
        tokens_per_second=over_seeds("tokens_per_second"),
        peak_memory=over_seeds("peak_memory"),
        initial_loss=over_seeds("loss", "initial"),
        final_loss=over_seeds("loss", "final"),
        before=heterogeneity(results, preset, "initial"),
        after=heterogeneity(results, preset, "final"),
        diverged=diverged(results, preset),
    )


def _seeds(results: FolderResults, preset: str) -> tuple[int, ...]:
    seeds = {row.seed for row in results.measurements if row.preset == preset}
    return tuple(sorted(seeds | {row.seed for row in results.metrics if row.preset == preset}))


def diverged(results: FolderResults, preset: str) -> tuple[int, ...]:
    """The seeds of a block whose loss became infinite or not a number."""
    losses = [(row.seed, row.loss) for row in results.metrics if row.preset == preset]
    losses += [(row.seed, row.value) for row in results.select("loss", preset=preset)]
    return tuple(sorted({seed for seed, loss in losses if not math.isfinite(loss)}))


def summary(results: FolderResults, *, seconds: float | None = None) -> dict[str, Any]:
    """The comparison as one JSON object, of numbers, text, null and nothing that is not a number.

    Args:
        results: a run folder.
        seconds: what the whole command took; training time of all runs when None.

    Returns:
        `command`, `out`, `seconds`, `match`, `missing` and `presets`: for each block its parameters, steps,
        speed, memory, losses, `standard_errors` of those, heterogeneity and curvature
        (before and after training: group → part → value, standard_error).
    """
    if seconds is None:
        seconds = math.fsum(
            row.value for row in results.select("training_time") if math.isfinite(row.value)
        )
    return {
        "command": results.settings.command,
        "out": str(results.folder),
        "seconds": seconds,
        "match": matched(results),
        "missing": list(results.missing),
        "presets": {row.preset: _preset_summary(results, row) for row in comparison_rows(results)},
    }


def _preset_summary(results: FolderResults, row: ComparisonRow) -> dict[str, Any]:
    names = ("tokens_per_second", "initial_loss", "final_loss", "peak_memory")
    averages = {name: _plain(getattr(row, name)) for name in names}
    return {
        "seeds": list(row.seeds),
        "diverged": list(row.diverged),
        "parameters": row.parameters,
        "steps": steps_of(results, row.preset),
        **{name: mean["value"] for name, mean in averages.items()},
        "standard_errors": {name: mean["standard_error"] for name, mean in averages.items()},
        "heterogeneity": {
            "before": _ratio_summary(row.before),
            "after": _ratio_summary(row.after),
        },
        "curvature": {
            "before": _curvature_summary(results, row.preset, "initial"),
            "after": _curvature_summary(results, row.preset, "final"),
        },
    }


def _plain(mean: Average | None) -> dict[str, float | None]:
    return {name: getattr(mean, name, None) for name in ("value", "standard_error")}


def _ratio_summary(found: Heterogeneity[Average] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    names = ("low", "high", "largest", "smallest")
    return (
        _plain(found.ratio)
        | {name: getattr(found, name) for name in names}
        | {"zero_groups": list(found.zero_groups)}
    )


def _curvature_summary(
    results: FolderResults, preset: str, stage: str
) -> dict[str, dict[str, dict[str, float | None]]]:
    groups: dict[str, dict[str, list[ResultRow]]] = defaultdict(lambda: defaultdict(list))
    for row in results.select(NORM, preset=preset, stage=stage):
        groups[row.group][row.part].append(row)
    return {
        group: {part: _plain(average_rows(same)) for part, same in parts.items()}
        for group, parts in groups.items()
    }
