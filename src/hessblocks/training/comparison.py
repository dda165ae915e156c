"""Train several presets and seeds in one folder: same data, same order, same number of updates."""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from hessblocks import storage
from hessblocks.blocks import BlockConfig
from hessblocks.conventions import AnyPath
from hessblocks.data import BIGRAMS, BigramTable, Corpus
from hessblocks.errors import RunError, duration
from hessblocks.models import draw_blocks
from hessblocks.progress import Progress
from hessblocks.settings import ComparisonSettings, ObservationSettings, RunSettings
from hessblocks.training.folder import RunFolder, claimed
from hessblocks.training.following import line_files, map_seconds
from hessblocks.training.preparation import Prepared, TrainedSettings, blocks_of, config_of, prepare
from hessblocks.training.recorder import Recorder
from hessblocks.training.run import Run
from hessblocks.training.trainer import held_out, make_trainer

Finish = Callable[[Path], object]
TUNING_SEED = 1000
"""Seed of the runs that search rates; runs of a comparison should not use it."""
MIDDLE = {"adamw": -5, "sgd": -1, "muon": -4}
"""Half decade at which the search begins, by optimiser: rates 3e-3, 3e-1, 1e-2."""
TRIAL = 4
"""Updates to tell the cost from."""
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
    if not (wanted := [place for place in (best, best - 1, best + 1) if place not in losses]):
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
    losses = storage.read_tuning(folder.path)
    middle = MIDDLE[settings.training.optimiser]
    todo = [run for run in seeded if next_rate(losses.get(run.preset, {}), middle) is not None]
    if todo:
        updates = len(todo) * settings.training.steps
        progress.note(
            f"tuning: {len(todo)} blocks, 3 to 5 rates each with one seed: {3 * updates:,} to "
            f"{5 * updates:,} updates; the runs that count take "
            f"{len(settings.seeds) * len(seeded) * settings.training.steps:,}"
        )
    rates = {}
    for run in seeded:
        rate_losses = losses.setdefault(run.preset, {})
        while (rate := next_rate(rate_losses, middle)) is not None:
            training = replace(run.training, learning_rate=rate)
            brief = replace(run, training=training, report_to="none")
            with progress.stage("tuning", f"{run.preset}, rate {rate:g}", training.steps):
                rate_losses[rate] = tuning_loss(brief, prepared, progress)
            storage.write_tuning(folder.path, TUNING_SEED, losses)
        best = rates[run.preset] = min(rate_losses, key=lambda rate: rate_losses[rate])
        progress.note(f"{run.preset}: best rate {best:g}, held-out loss {rate_losses[best]:.4g}")
    return rates


def tuning_loss(run: RunSettings, prepared: Prepared, progress: Progress | None = None) -> float:
    """Train a run without writing any file.

    Args:
        run: settings of the run, with the rate to try.
        prepared: text to train and validate on, and blocks.
        progress: shows the steps.

    Returns:
        The last validation loss, in nats per token; infinite if the run diverged.
    """
    lines = _unsaved(run, prepared, progress)
    losses = [line["loss"] for line in lines if line["split"] == "validation"]
    diverged = not losses or any("diverged" in line for line in lines)
    return math.inf if diverged or not math.isfinite(losses[-1]) else losses[-1]


def _unsaved(
    run: RunSettings, prepared: Prepared, progress: Progress | None = None
) -> list[storage.JsonLine]:
    """Train a run without writing any file; return its losses and speeds."""
    lines: list[storage.JsonLine] = []

    def hear(line: storage.JsonLine) -> None:
        lines.append(line)
        if progress and line["split"] == "train":
            progress.step(line["step"], line["loss"])

    quiet_run = replace(
        run,
        training=replace(run.training, evaluate_every=run.training.steps),
        curvature=None,
        observation=ObservationSettings(),
    )
    model = prepared.build(run.preset, run.seed)
    with tempfile.TemporaryDirectory() as unused:
        trainer = make_trainer(model, quiet_run, prepared.corpus, Path(unused))
        Recorder(quiet_run, listener=hear).record(trainer)
    return lines


def _cost(
    settings: ComparisonSettings,
    runs: Sequence[RunSettings],
    prepared: Prepared,
    progress: Progress,
) -> str:
    """Estimate the time of runs, from a few updates and products of the first block."""
    run, training = runs[0], settings.training
    few = replace(training, steps=TRIAL, log_every=1, evaluation_sequences=1)
    lines = _unsaved(replace(run, training=few, report_to="none"), prepared)
    speed = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line][-1]
    windows = (training.steps // training.evaluate_every + 2) * training.evaluation_sequences
    sequences = training.steps * training.batch_size + windows / 3  # forward passes alone
    each = sequences * settings.model.context / speed
    clauses, total = [f"{duration(len(runs) * each)} for training"], len(runs) * each
    if settings.tune:
        tuning = [times * len(settings.presets) * each for times in (3, 5)]
        clauses.insert(0, f"{' to '.join(map(duration, tuning))} for tuning")
        total += tuning[-1]
    if settings.curvature:
        model = prepared.build(run.preset, run.seed)
        seconds = 2 * len(runs) * map_seconds(model, run, settings.curvature, prepared.corpus)
        clauses += [f"{duration(seconds)} for curvature before and after"]
        total += seconds
    unit = " of processor time" if settings.device == "cpu" else ""
    return f"{len(runs)} runs: about {', '.join(clauses)}{unit}; {progress.in_all(total)}"


def compare(
    settings: ComparisonSettings,
    corpus: Corpus,
    out: AnyPath,
    progress: Progress,
    command: str = "compare",
    finish: Finish | None = None,
) -> None:
    """Train every run that `out` lacks, measure its curvature, and join the results.

    Args:
        settings: settings of the comparison.
        corpus: training and held-out tokens.
        out: run folder, new or of the same comparison.
        progress: shows stages and steps.
        command: name of the command in config.json.
        finish: called with the folder at the end, while it is still locked for this process.

    Raises:
        ArgumentError: sizes that do not fit, too little data, or another run in `out`.
        RunError: `out` cannot be written.
    """
    with _opened(settings, corpus, out, command, finish) as (folder, prepared):
        if left := [r for r in settings.runs() if not folder.run(r.preset, r.seed).model.exists()]:
            with progress.stage("plan"):
                cost = _cost(settings, left, prepared, progress)
            without = "; --no-curvature leaves the last out" if command == "compare" else ""
            progress.note(cost + without * bool(settings.curvature))
        rates = tuned_rates(settings, prepared, folder, progress) if settings.tune else None
        runs = settings.runs(rates)
        for run in runs:
            run_folder = folder.run(run.preset, run.seed)
            run_folder.prepare(config_of(prepared, command, run))
            Run(run, prepared, run_folder, progress).complete()
            _gather(folder, runs, prepared)


@contextmanager
def _opened(
    settings: TrainedSettings, corpus: Corpus, out: AnyPath, command: str, finish: Finish | None
) -> Iterator[tuple[RunFolder, Prepared]]:
    """Check the settings; lock, prepare and yield the folder, and finish it."""
    prepared = prepare(settings, corpus)
    config = config_of(prepared, command)
    growing = ("presets", "seeds", "own") if isinstance(settings, ComparisonSettings) else ()
    with claimed(Path(out), config, growing, finish=finish) as folder:
        _draw(folder.path, {name: blocks_of(settings.model, name) for name in settings.presets})
        _write_reference(folder.path, prepared)
        yield folder, prepared


def _draw(out: Path, presets: Mapping[str, Sequence[BlockConfig]]) -> None:
    """Draw the blocks of each preset as SVG for the page."""
    blocks: dict[str, BlockConfig] = {}
    for name, layers in presets.items():
        distinct = dict.fromkeys(layers)
        blocks |= {
            f"{index} of {name}" if len(distinct) > 1 else name: block
            for index, block in enumerate(distinct, start=1)
        }
    storage.write_text(out / "blocks.svg", draw_blocks(blocks))
    storage.write_text(out / "blocks-narrow.svg", draw_blocks(blocks, columns=2))  # for phones


def _write_reference(out: Path, prepared: Prepared) -> None:
    """Write the held-out loss of a bigram table, a baseline for the blocks, to reference.json."""
    if (path := out / storage.REFERENCE).exists():
        return
    settings, corpus = prepared.settings, prepared.corpus
    table = BigramTable(corpus.splits["train"], corpus.vocab_size)
    windows: Any = held_out(corpus, settings)
    tokens = torch.stack([windows[index]["input_ids"] for index in range(len(windows))])
    storage.write_json(path, {"what": BIGRAMS, "loss": table.loss(tokens)})


def _gather(folder: RunFolder, settings: Sequence[RunSettings], prepared: Prepared) -> None:
    """Join the tables of all finished and started runs in the folder of the comparison."""
    runs = [(run, folder.run(run.preset, run.seed)) for run in settings]
    rows = [storage.read_results(run_folder.results) for _, run_folder in runs]
    for name in ("metrics", "observations"):
        lines: list[dict[str, Any]] = []
        for (run, run_folder), measured in zip(runs, rows, strict=True):
            path = getattr(run_folder, name)
            written = line_files(run, prepared, run_folder)
            finished = storage.is_trained(measured) and path in written
            lines += storage.read_finished_lines(path) if finished else storage.read_lines(path)
        if name == "metrics" or lines:
            text = "".join(json.dumps(entry) + "\n" for entry in lines)
            storage.write_text(getattr(folder, name), text)
    storage.write_results(folder.results, chain.from_iterable(rows))


def train(
    settings: RunSettings,
    corpus: Corpus,
    out: AnyPath,
    progress: Progress,
    command: str = "train",
    finish: Finish | None = None,
) -> None:
    """Train one run in its own folder, or resume it.

    Args:
        settings: settings of the run.
        corpus: training and held-out tokens.
        out: run folder, new or of the same run.
        progress: shows stages and steps.
        command: name of the command in config.json.
        finish: called with the folder at the end, while it is still locked for this process.

    Raises:
        ArgumentError: sizes that do not fit, too little data, or another run in `out`.
        RunError: `out` cannot be written or is damaged.
    """
    with _opened(settings, corpus, out, command, finish) as (folder, prepared):
        Run(settings, prepared, folder, progress).complete()
