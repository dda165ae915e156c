"""The comparison as plain data: rows for the tables, and the JSON summary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hessblocks.report.comparison.averages import average_rows, heterogeneity
from hessblocks.report.comparison.budget import matched, spent
from hessblocks.statistics import Average, Heterogeneity
from hessblocks.storage import NORM, STAGES, FolderResults, ResultRow

MOMENTS = ("before", "after")


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
    averages = {
        "tokens_per_second": row.tokens_per_second,
        "initial_loss": row.initial_loss,
        "final_loss": row.final_loss,
        "peak_memory": row.peak_memory,
    }
    return {
        "seeds": list(row.seeds),
        "diverged": list(row.diverged),
        "parameters": row.parameters,
        "steps": spent(results, row.preset).steps,
        **{name: mean.value if mean else None for name, mean in averages.items()},
        "standard_errors": {
            name: mean.standard_error if mean else None for name, mean in averages.items()
        },
        "heterogeneity": {
            moment: _ratio_summary(ratio)
            for moment, ratio in zip(MOMENTS, (row.before, row.after), strict=True)
        },
        "curvature": {
            moment: _curvature_summary(results, row.preset, stage)
            for moment, stage in zip(MOMENTS, STAGES, strict=True)
        },
    }


def _ratio_summary(ratio: Heterogeneity[Average] | None) -> dict[str, Any] | None:
    if ratio is None:
        return None
    return {
        "value": ratio.ratio.value,
        "standard_error": ratio.ratio.standard_error,
        "low": ratio.low,
        "high": ratio.high,
        "largest": ratio.largest,
        "smallest": ratio.smallest,
        "zero_groups": list(ratio.zero_groups),
    }


def _curvature_summary(
    results: FolderResults, preset: str, stage: str
) -> dict[str, dict[str, dict[str, float | None]]]:
    rows: dict[tuple[str, str], list[ResultRow]] = {}
    for row in results.select(NORM, preset=preset, stage=stage):
        rows.setdefault((row.group, row.part), []).append(row)
    groups: dict[str, dict[str, dict[str, float | None]]] = {}
    for (group, part), same in rows.items():
        mean = average_rows(same)
        groups.setdefault(group, {})[part] = {
            "value": mean.value if mean else None,
            "standard_error": mean.standard_error if mean else None,
        }
    return groups
