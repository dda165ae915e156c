"""Train several presets and seeds in one folder: same data, same order, same number of updates."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from hessblocks import storage
from hessblocks.blocks import BlockConfig
from hessblocks.conventions import AnyPath
from hessblocks.data import BIGRAMS, BigramTable, Corpus
from hessblocks.models import draw_blocks
from hessblocks.progress import Progress
from hessblocks.settings import ComparisonSettings, RunSettings
from hessblocks.training.folder import RunFolder, claimed
from hessblocks.training.preparation import (
    Prepared,
    TrainedSettings,
    config_of,
    line_files,
    prepare,
)
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
    with _opened(settings, corpus, out, command) as (folder, prepared):
        rates = tuned_rates(settings, prepared, folder, progress) if settings.tune else None
        runs = settings.runs(rates)
        for run in runs:
            run_folder = folder.run(run.preset, run.seed)
            run_folder.prepare(config_of(prepared, command, run))
            Run(run, prepared, run_folder, progress).complete()
            _gather(folder, runs, prepared)
        if finish:
            finish(folder.path)


@contextmanager
def _opened(
    settings: TrainedSettings, corpus: Corpus, out: AnyPath, command: str
) -> Iterator[tuple[RunFolder, Prepared]]:
    """Check the settings; lock, prepare and yield the folder."""
    prepared = prepare(settings, corpus)
    config = config_of(prepared, command)
    growing = ("presets", "seeds", "own") if isinstance(settings, ComparisonSettings) else ()
    with claimed(Path(out), config, growing) as folder:
        _draw(folder.path, {name: prepared.blocks(name) for name in settings.presets})
        _write_reference(folder.path, prepared)
        yield folder, prepared


def _draw(out: Path, presets: Mapping[str, Sequence[BlockConfig]]) -> None:
    """Draw the blocks of each preset as SVG for the page."""
    blocks: dict[str, BlockConfig] = {}
    for name, layers in presets.items():
        distinct = dict.fromkeys(layers)
        several = len(distinct) > 1
        blocks |= {
            f"{index} of {name}" if several else name: block
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
            finished = storage.is_trained(measured) and name in line_files(run, prepared)
            lines += storage.read_finished_lines(path) if finished else storage.read_lines(path)
        if name == "metrics" or lines:
            storage.write_text(
                getattr(folder, name), "".join(json.dumps(entry) + "\n" for entry in lines)
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
    with _opened(settings, corpus, out, command) as (folder, prepared):
        Run(settings, prepared, folder, progress).complete()
        if finish:
            finish(folder.path)
