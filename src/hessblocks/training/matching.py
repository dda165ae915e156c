"""Fair comparison: how many updates each preset gets for the budget of the first."""

from __future__ import annotations

import math
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from hessblocks.data import Corpus
from hessblocks.errors import ArgumentError, RunError
from hessblocks.progress import Progress
from hessblocks.settings import ComparisonSettings, RunSettings
from hessblocks.storage import read_object, write_json
from hessblocks.training.cost import step_seconds, update_flops
from hessblocks.training.execution import give
from hessblocks.training.folder import RunFolder

UNITS = {"tokens": "tokens", "time": "seconds", "flops": "floating-point operations"}
ROUNDS = 3
"""How often the pace of each preset is measured, in turns."""


def steps_of(
    settings: ComparisonSettings, corpus: Corpus, folder: RunFolder, progress: Progress
) -> dict[str, int]:
    """Updates of each preset; a budget is recorded in budget.json, and costs are taken from there.

    budget.json says what is matched and in which unit, the `reference` (the preset whose steps set the
    budget), the `total` that it spends and nobody more, the `cost` of an update of each preset, and its
    `steps`: as many as the budget allows, at least 1.

    Args:
        settings: of the comparison.
        corpus: to measure the pace on.
        folder: of the comparison, claimed.
        progress: told what is going on.

    Returns:
        Preset → updates.

    Raises:
        ArgumentError: the folder's budget is that of another preset.
        RunError: budget.json is damaged.

    Cost:
        Where time is matched, a few steps of each preset that was not measured before, and of the first
        beside them.
    """
    if settings.match == "steps":
        return dict.fromkeys(settings.presets, settings.training.steps)
    known = _recorded(folder.budget)
    exact, reference = settings.match != "time", settings.presets[0]
    cost = {} if exact else dict(known.get("cost", {}))
    if known and known["reference"] != reference:
        raise ArgumentError(
            f"--presets: the budget of {folder.path} is that of {known['reference']}; name it first, "
            "or choose another --out."
        )
    new = [
        run for run in settings.runs() if run.preset not in cost and run.seed == settings.seeds[0]
    ]
    if (
        known and new and not exact
    ):  # beside the reference: the machine may be slower or faster than it was
        again = [run for run in settings.runs() if run.preset == reference][:1]
        now = _costs(settings.match, again + new, corpus, progress)
        cost |= {run.preset: now[run.preset] * cost[reference] / now[reference] for run in new}
    else:
        cost |= _costs(settings.match, new, corpus, progress)
    total = settings.training.steps * cost[reference]
    steps = {name: max(1, math.floor(total / own * (1 + 1e-12))) for name, own in cost.items()}
    budget: dict[str, Any] = {
        "match": settings.match,
        "unit": UNITS[settings.match],
        "reference": reference,
    }
    budget |= {"total": total, "cost": cost, "steps": steps}
    if budget != known:
        write_json(folder.budget, budget)
    return steps


def _costs(
    match: str, runs: list[RunSettings], corpus: Corpus, progress: Progress
) -> dict[str, float]:
    if match == "flops":
        return {run.preset: float(update_flops(run, corpus.vocab_size)) for run in runs}
    if match == "tokens":
        return {run.preset: float(run.training.batch_size * run.model.context) for run in runs}
    with progress.stage("pace", ", ".join(run.preset for run in runs)):
        seconds: dict[str, list[float]] = {run.preset: [] for run in runs}
        for run in runs * ROUNDS:
            give(partial(step_seconds, run))
            seconds[run.preset] += step_seconds(run, corpus)
    return {name: statistics.median(found) for name, found in seconds.items()}


def _recorded(path: Path) -> dict[str, Any]:
    """The budget as it was written; empty where there is none yet."""
    if not path.exists():
        return {}
    try:
        found = read_object(path)
        cost = {name: float(one) for name, one in found["cost"].items()}
        if found["reference"] in cost and all(0 < one < math.inf for one in cost.values()):
            return found | {"cost": cost}
    except (RunError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise RunError(f"{path}: damaged; remove the folder {path.parent} and run again.")
