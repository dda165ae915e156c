"""Search the best learning rate of each block, in half decades and with a separate seed."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hessblocks import storage
from hessblocks.errors import RunError
from hessblocks.progress import Progress
from hessblocks.settings import ComparisonSettings, ObservationSettings, RunSettings
from hessblocks.training.folder import RunFolder
from hessblocks.training.preparation import Prepared
from hessblocks.training.recorder import Recorder
from hessblocks.training.trainer import make_trainer

TUNING_SEED = 1000
"""Seed of the runs that search rates; runs of a comparison should not use it."""
MIDDLE = {"adamw": -5, "sgd": -1, "muon": -4}
"""Half decade at which the search begins, by optimiser: rates 3e-3, 3e-1, 1e-2."""
FARTHEST = 8
"""Most half decades away from there; a search that goes further fails."""


def half_decade(index: int) -> float:
    """Return the rate at an index of the grid 1, 3, 10, 30, ...

    Returns:
        The rate; 1 at index 0.

    >>> [half_decade(place) for place in (-5, -4, -1, 0, 1)]
    [0.003, 0.01, 0.3, 1.0, 3.0]
    """
    exponent, remainder = divmod(index, 2)
    return float(f"{3 if remainder else 1}e{exponent}")


def next_rate(tried: dict[float, float], middle: int) -> float | None:
    """Choose the next rate to try, until the best rate has tried neighbours on both sides.

    Args:
        tried: rate → loss; infinite if the run diverged.
        middle: index of the grid at which the search begins.

    Returns:
        The rate; None if the search is finished.

    Raises:
        RunError: the losses still fall at the end of the grid.
    """
    rates = {offset: half_decade(middle + offset) for offset in range(-FARTHEST, FARTHEST + 1)}
    losses = {offset: tried[rate] for offset, rate in rates.items() if rate in tried}
    best = min(losses, key=lambda offset: (losses[offset], offset), default=0)
    wanted = [offset for offset in (best, best - 1, best + 1) if offset not in losses]
    if not wanted:
        return None
    if abs(wanted[0]) > FARTHEST:
        raise RunError(
            f"--tune: the best rate lies beyond {half_decade(middle + best):g}; train longer, or "
            "give a rate with --learning-rate."
        )
    return rates[wanted[0]]


def tuned_rates(
    settings: ComparisonSettings, prepared: Prepared, folder: RunFolder, progress: Progress
) -> dict[str, float]:
    """Find the best rate of each block, and write every loss to tuning.json after its run.

    tuning.json has the `seed`, and for each block its `best` rate and the `losses`: pairs of rate
    and last validation loss (null if the run diverged). A stopped search resumes at the next rate.

    Args:
        settings: settings of the comparison.
        prepared: text to train and validate on, and blocks.
        folder: locked folder of the comparison.
        progress: shows the cost in updates first, then stages and steps.

    Returns:
        Block → rate.

    Raises:
        RunError: losses still fall at the end of the grid, or tuning.json is damaged.

    Cost:
        At least three runs per block, each as long as a run of the comparison.
    """
    seeded = replace(settings, seeds=(TUNING_SEED,)).runs()
    losses = {
        name: dict(rate_losses) for name, rate_losses in storage.read_tuning(folder.path).items()
    }
    middle = MIDDLE[settings.training.optimiser]
    todo = [run for run in seeded if next_rate(losses.get(run.preset, {}), middle) is not None]
    if todo:
        updates = len(todo) * settings.training.steps
        progress.note(
            f"tuning: {len(todo)} blocks, 3 to 5 rates each with one seed: {3 * updates:,} to "
            f"{5 * updates:,} updates; the runs that count take "
            f"{len(settings.seeds) * len(seeded) * settings.training.steps:,}"
        )
    for run in seeded:
        rate_losses = losses.setdefault(run.preset, {})
        while (rate := next_rate(rate_losses, middle)) is not None:
            training = replace(run.training, learning_rate=rate)
            brief = replace(run, training=training, report_to="none")
            with progress.stage("tuning", f"{run.preset}, rate {rate:g}", training.steps):
                rate_losses[rate] = tuning_loss(brief, prepared, progress)
            storage.write_tuning(folder.path, TUNING_SEED, losses)
    return {
        name: min(rate_losses, key=lambda rate: rate_losses[rate])
        for name, rate_losses in losses.items()
    }


def tuning_loss(run: RunSettings, prepared: Prepared, progress: Progress | None = None) -> float:
    """Train a run without writing any file.

    Args:
        run: settings of the run, with the rate to try.
        prepared: text to train and validate on, and blocks.
        progress: shows the steps.

    Returns:
        The last validation loss, in nats per token; infinite if the run diverged.
    """
    last = math.inf

    def hear(line: dict[str, Any]) -> None:
        nonlocal last
        if line["split"] == "validation":
            last = line["loss"] if math.isfinite(line["loss"]) else math.inf
        elif progress:
            progress.step(line["step"], line["loss"])

    quiet_run = replace(
        run,
        training=replace(run.training, evaluate_every=run.training.steps),
        curvature=None,
        observation=ObservationSettings(),
    )
    recorder = Recorder(quiet_run, listener=hear)
    model = prepared.build(run.preset, run.seed)
    with tempfile.TemporaryDirectory() as unused:
        recorder.record(make_trainer(model, quiet_run, prepared.corpus, Path(unused)))
    return math.inf if recorder.divergence else last
