"""Train several presets and seeds in one folder: same data, same order, same budget."""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from hessblocks import storage
from hessblocks.blocks import BlockConfig
from hessblocks.conventions import AnyPath
from hessblocks.data import BIGRAMS, BigramTable, Corpus
from hessblocks.errors import ArgumentError, RunError
from hessblocks.models import draw_blocks
from hessblocks.progress import Progress
from hessblocks.settings import ComparisonSettings, RunSettings, SharedSettings
from hessblocks.training.cost import step_seconds, update_flops
from hessblocks.training.folder import RunFolder, claimed
from hessblocks.training.preparation import check, config_of, line_files, model_without_weights
from hessblocks.training.run import Run
from hessblocks.training.trainer import held_out
from hessblocks.training.tuning import tuned_rates


def compare(
    settings: ComparisonSettings,
    corpus: Corpus,
    out: AnyPath,
    progress: Progress,
    command: str = "compare",
    finish: Callable[[Path], object] | None = None,
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
    with _opened(settings, settings.presets, corpus, out, command) as folder:
        rates = tuned_rates(settings, corpus, folder, progress) if settings.tune else None
        runs = settings.runs(steps_of(settings, corpus, folder, progress), rates)
        for run in runs:
            own = folder.run(run.preset, run.seed)
            own.prepare(config_of(run, command, corpus))
            Run(run, corpus, own, progress).complete()
            _gather(folder, runs, corpus.vocab_size)
        if finish:
            finish(folder.path)


@contextmanager
def _opened(
    settings: SharedSettings, presets: Sequence[str], corpus: Corpus, out: AnyPath, command: str
) -> Iterator[RunFolder]:
    """Check the settings; lock, prepare and yield the folder."""
    check(settings, presets, corpus)
    config = config_of(settings, command, corpus)
    growing = ("presets", "seeds", "own") if isinstance(settings, ComparisonSettings) else ()
    with claimed(Path(out), config, growing) as folder:
        _draw(folder.path, settings, presets, corpus.vocab_size)
        _write_reference(folder.path, settings, corpus)
        yield folder


def _draw(out: Path, settings: SharedSettings, presets: Sequence[str], vocab_size: int) -> None:
    """Draw the blocks of each preset as SVG for the page."""
    blocks: dict[str, BlockConfig] = {}
    for name in presets:
        own = dict.fromkeys(model_without_weights(settings.model, name, vocab_size).config.blocks)
        several = len(own) > 1
        blocks |= {f"{k} of {name}" if several else name: one for k, one in enumerate(own, start=1)}
    storage.write_text(out / "blocks.svg", draw_blocks(blocks))
    storage.write_text(out / "blocks-narrow.svg", draw_blocks(blocks, columns=2))  # for phones


def _write_reference(out: Path, settings: SharedSettings, corpus: Corpus) -> None:
    """Write the held-out loss of a bigram table, a baseline for the blocks, to reference.json."""
    if (path := out / storage.REFERENCE).exists():
        return
    table = BigramTable(corpus.splits["train"], corpus.vocab_size)
    windows: Any = held_out(corpus, settings)
    tokens = torch.stack([windows[place]["input_ids"] for place in range(len(windows))])
    storage.write_json(path, {"what": BIGRAMS, "loss": table.loss(tokens)})


def _gather(folder: RunFolder, settings: Sequence[RunSettings], vocab_size: int) -> None:
    """Join the tables of all finished and started runs in the folder of the comparison."""
    runs = [(run, folder.run(run.preset, run.seed)) for run in settings]
    rows = [storage.read_results(own.results) for _, own in runs]
    for name in ("metrics", "observations"):
        found: list[dict[str, Any]] = []
        for (run, own), known in zip(runs, rows, strict=True):
            path = getattr(own, name)
            finished = storage.is_trained(known) and name in line_files(run, vocab_size)
            found += storage.read_finished_lines(path) if finished else storage.read_lines(path)
        if name == "metrics" or found:
            storage.write_text(
                getattr(folder, name), "".join(json.dumps(line) + "\n" for line in found)
            )
    storage.write_results(folder.results, chain.from_iterable(rows))


def train(
    settings: RunSettings,
    corpus: Corpus,
    out: AnyPath,
    progress: Progress,
    command: str = "train",
    finish: Callable[[Path], object] | None = None,
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
    with _opened(settings, [settings.preset], corpus, out, command) as folder:
        Run(settings, corpus, folder, progress).complete()
        if finish:
            finish(folder.path)


UNITS = {"tokens": "tokens", "time": "seconds", "flops": "floating-point operations"}
ROUNDS = 3
"""Number of timings of each preset; the presets take turns."""


def steps_of(
    settings: ComparisonSettings, corpus: Corpus, folder: RunFolder, progress: Progress
) -> dict[str, int]:
    """Compute the number of updates of each preset; record the budget in budget.json.

    budget.json has the matched quantity `match` and its `unit`. `reference` is the preset whose
    steps set the budget, and `total` is the cost of these steps. `cost` has the cost of one update
    of each preset, `steps` its largest number of updates within the total, at least 1.

    Args:
        settings: settings of the comparison.
        corpus: text to time updates on.
        folder: locked folder of the comparison.
        progress: shows stages and steps.

    Returns:
        Preset → number of updates.

    Raises:
        ArgumentError: the budget in the folder has another reference preset.
        RunError: budget.json is damaged.

    Cost:
        If time is matched: a few steps of each preset that is not timed yet, and of the reference.
    """
    if settings.match == "steps":
        return dict.fromkeys(settings.presets, settings.training.steps)
    known = _read_budget(folder.budget)
    exact, reference = settings.match != "time", settings.presets[0]
    cost = {} if exact else dict(known.get("cost", {}))
    if known and known["reference"] != reference:
        raise ArgumentError(
            f"--presets: the budget of {folder.path} is that of {known['reference']}; name it "
            "first, or choose another --out."
        )
    seed = settings.seeds[0]
    new = [run for run in settings.runs() if run.preset not in cost and run.seed == seed]
    # time the reference again with the new ones: the machine's speed may have changed
    if known and new and not exact:
        again = [run for run in settings.runs() if run.preset == reference][:1]
        now = _costs(settings.match, again + new, corpus, progress)
        cost |= {run.preset: now[run.preset] * cost[reference] / now[reference] for run in new}
    else:
        cost |= _costs(settings.match, new, corpus, progress)
    total = settings.training.steps * cost[reference]
    # 1e-12: rounding of the quotient must not lose an update
    steps = {name: max(1, math.floor(total / own * (1 + 1e-12))) for name, own in cost.items()}
    budget: dict[str, Any] = {"match": settings.match, "unit": UNITS[settings.match]}
    budget |= {"reference": reference, "total": total, "cost": cost, "steps": steps}
    if budget != known:
        storage.write_json(folder.budget, budget)
    return steps


def _costs(
    match: str, runs: list[RunSettings], corpus: Corpus, progress: Progress
) -> dict[str, float]:
    """Compute or time the cost of one update of each run, in the unit of the matched quantity."""
    if match == "flops":
        return {run.preset: float(update_flops(run, corpus.vocab_size)) for run in runs}
    if match == "tokens":
        return {run.preset: float(run.training.batch_size * run.model.context) for run in runs}
    with progress.stage("pace", ", ".join(run.preset for run in runs)):
        seconds: dict[str, list[float]] = {run.preset: [] for run in runs}
        for run in runs * ROUNDS:
            seconds[run.preset] += step_seconds(run, corpus)
    return {name: statistics.median(found) for name, found in seconds.items()}


def _read_budget(path: Path) -> dict[str, Any]:
    """Read and check budget.json; empty if there is no file."""
    if not path.exists():
        return {}
    try:
        found = storage.read_object(path)
        cost = {name: float(one) for name, one in found["cost"].items()}
        if found["reference"] in cost and all(0 < one < math.inf for one in cost.values()):
            return found | {"cost": cost}
    except (RunError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise RunError(f"{path}: damaged; remove the folder {path.parent} and run again.")
