"""Summarise a comparison as one JSON object."""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from hessblocks.report.comparison import MOMENTS, Comparison, ComparisonRow, compare_results
from hessblocks.statistics import Average, Heterogeneity
from hessblocks.storage import FolderResults, ResultRow

AVERAGES = ("tokens_per_second", "initial_loss", "final_loss", "peak_memory")


def summary(results: FolderResults | Comparison, *, seconds: float | None = None) -> dict[str, Any]:
    """Summarise a comparison as one JSON object; numbers that are not finite are null.

    Args:
        results: results of a run folder, or their comparison.
        seconds: duration of the whole command; None: training time of all runs.

    Returns:
        `command`, `out`, `seconds`, `bigram_loss`, `tuned`, `missing` and `presets`: for
        each block its parameters, steps, rate, tokens per parameter, speed, memory, losses,
        `standard_errors` of those, heterogeneity and
        curvature (before and after training: group → part → value, standard_error).
    """
    found = compare_results(results)
    times = [row.value for row in found.results.select("training_time")]
    trained = math.fsum(filter(math.isfinite, times))
    return {
        "command": found.results.settings.command,
        "out": str(found.results.folder),
        "seconds": trained if seconds is None else seconds,
        "bigram_loss": found.results.reference,
        "tuned": bool(found.results.tried),
        "missing": list(found.results.missing),
        "presets": {
            row.preset: _preset(row, [one for one in found.norms if one.preset == row.preset])
            for row in found.rows
        },
    }


def _preset(row: ComparisonRow, norms: Iterable[ResultRow]) -> dict[str, Any]:
    averages = {name: _number(getattr(row, name)) for name in AVERAGES}
    curvature: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(dict))
    for norm in norms:
        curvature[norm.stage][norm.group][norm.part] = _number(norm)
    return {
        "seeds": list(row.seeds),
        "diverged": list(row.diverged),
        "parameters": row.parameters,
        "steps": row.steps,
        "learning_rate": row.rate,
        "tokens_a_parameter": row.tokens_a_parameter,
        **{name: mean["value"] for name, mean in averages.items()},
        "standard_errors": {name: mean["standard_error"] for name, mean in averages.items()},
        "heterogeneity": {moment: _ratio(getattr(row, moment)) for moment in MOMENTS},
        "curvature": {moment: curvature[stage] for moment, stage in MOMENTS.items()},
    }


def _number(found: Average | ResultRow | None) -> dict[str, float | None]:
    if found is None or math.isnan(found.value):
        return {"value": None, "standard_error": None}
    return {"value": found.value, "standard_error": found.standard_error}


def _ratio(found: Heterogeneity[Average] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        **_number(found.ratio),
        "low": found.low,
        "high": found.high,
        "largest": found.largest,
        "smallest": found.smallest,
        "zero_groups": list(found.zero_groups),
    }
