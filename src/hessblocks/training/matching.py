"""Fair comparison: how many updates each preset gets for the budget of the first."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hessblocks.data import Corpus
from hessblocks.errors import ArgumentError, RunError
from hessblocks.progress import Progress
from hessblocks.settings import ComparisonSettings, RunSettings
from hessblocks.storage import write_json
from hessblocks.training.execution import Order, give
from hessblocks.training.folder import RunFolder
from hessblocks.training.trainer import step_seconds, update_flops

UNITS = {"tokens": "tokens", "time": "seconds", "flops": "floating-point operations"}
ROUNDS = 3
"""How often the pace of each preset is measured, in turns."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What each preset may spend, and what an update of it costs."""

    match: str
    """tokens, time or flops."""
    unit: str
    """Of the costs."""
    reference: str
    """The preset whose steps set the budget."""
    total: float
    """What the reference spends, and nobody more."""
    cost: Mapping[str, float]
    """Of one update of each preset."""
    steps: Mapping[str, int]
    """Updates of each preset: as many as the budget allows, at least 1."""


def steps_of(
    settings: ComparisonSettings, corpus: Corpus, folder: RunFolder, progress: Progress
) -> dict[str, int]:
    """Updates of each preset; a budget is recorded in budget.json, and costs are taken from there.

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
    reference = settings.presets[0]
    if known and known.reference != reference:
        raise ArgumentError(
            f"--presets: the budget of {folder.path} is that of {known.reference}; name it first, or "
            "choose another --out."
        )
    cost = dict(known.cost) if known else {}
    new = [
        run for run in settings.runs() if run.preset not in cost and run.seed == settings.seeds[0]
    ]
    if known and new:  # beside the reference: the machine may be slower or faster than it was
        again = [run for run in settings.runs() if run.preset == reference][:1]
        now = _costs(settings.match, again + new, corpus, folder.path, progress)
        cost |= {run.preset: now[run.preset] * cost[reference] / now[reference] for run in new}
    else:
        cost |= _costs(settings.match, new, corpus, folder.path, progress)
    total = settings.training.steps * cost[reference]
    steps = {name: max(1, math.floor(total / own * (1 + 1e-12))) for name, own in cost.items()}
    budget = Budget(
        match=settings.match,
        unit=UNITS[settings.match],
        reference=reference,
        total=total,
        cost=cost,
        steps=steps,
    )
    if budget != known:
        write_json(folder.budget, asdict(budget))
    return steps


def _costs(
    match: str, runs: list[RunSettings], corpus: Corpus, folder: Path, progress: Progress
) -> dict[str, float]:
    if match == "flops":
        return {run.preset: float(update_flops(run, corpus.vocab_size)) for run in runs}
    if match == "tokens":
        return {run.preset: float(run.training.batch_size * run.model.context) for run in runs}
    with progress.stage("pace", ", ".join(run.preset for run in runs)):
        orders = [Order(kind="pace", settings=run, folder=folder) for run in runs]
        seconds: dict[str, list[float]] = {run.preset: [] for run in runs}
        for order in orders * ROUNDS:
            give(order)
            seconds[order.settings.preset] += step_seconds(order.settings, corpus)
    return {name: statistics.median(found) for name, found in seconds.items()}


def _recorded(path: Path) -> Budget | None:
    if not path.exists():
        return None
    try:
        return Budget(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{path}: damaged; remove the folder {path.parent} and run again."
        ) from error
