"""Several presets and seeds in one folder, each trained on the same data in the same order."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from hessblocks.blocks import BlockConfig
from hessblocks.conventions import AnyPath
from hessblocks.data import Corpus
from hessblocks.models import draw_blocks
from hessblocks.progress import Progress
from hessblocks.settings import ComparisonSettings, RunSettings, SharedSettings
from hessblocks.storage import (
    is_trained,
    read_finished_lines,
    read_lines,
    read_results,
    write_results,
    write_text,
)
from hessblocks.training.execution import together
from hessblocks.training.folder import RunFolder, claimed
from hessblocks.training.matching import steps_of
from hessblocks.training.preparation import config_of, line_files, model_without_weights
from hessblocks.training.run import Run


def compare(
    settings: ComparisonSettings,
    corpus: Corpus,
    out: AnyPath,
    progress: Progress,
    command: str = "compare",
    finish: Callable[[Path], object] | None = None,
) -> None:
    """Train and map every run that `out` does not hold yet, and gather the results.

    Args:
        settings: what is compared.
        corpus: training and held-out tokens.
        out: run folder, new or of the same comparison.
        progress: told what is going on.
        command: its name in config.json.
        finish: given the folder when all is done, before another process may write there.

    Raises:
        ArgumentError: sizes that do not fit, too little data, or another run in `out`.
        RunError: `out` cannot be written.
    """
    out = Path(out)
    with together(settings, settings.presets, corpus) as deciding:
        if not deciding:
            return
        config = config_of(settings, command, corpus)
        with claimed(out, config, growing=("presets", "seeds")) as folder:
            _draw(out, settings, settings.presets, corpus.vocab_size)
            runs = settings.runs(steps_of(settings, corpus, folder, progress))
            for run in runs:
                own = folder.run(run.preset, run.seed)
                own.prepare(config_of(run, command, corpus))
                Run(run, corpus, own, progress).complete()
                _gather(folder, runs, corpus.vocab_size)
            if finish:
                finish(out)


def _draw(out: Path, settings: SharedSettings, presets: Sequence[str], vocab_size: int) -> None:
    """The blocks as a picture, for the page."""
    blocks: dict[str, BlockConfig] = {}
    for name in presets:
        own = dict.fromkeys(model_without_weights(settings.model, name, vocab_size).config.blocks)
        several = len(own) > 1
        blocks |= {f"{k} of {name}" if several else name: one for k, one in enumerate(own, start=1)}
    write_text(out / "blocks.svg", draw_blocks(blocks))


def _gather(folder: RunFolder, settings: Sequence[RunSettings], vocab_size: int) -> None:
    """Put the tables of the runs so far into the folder of the comparison, once all are read."""
    runs = [(run, folder.run(run.preset, run.seed)) for run in settings]
    rows = [read_results(own.results) for _, own in runs]
    for name in ("metrics", "observations"):
        found: list[dict[str, Any]] = []
        for (run, own), known in zip(runs, rows, strict=True):
            path = getattr(own, name)
            finished = is_trained(known) and name in line_files(run, vocab_size)
            found += read_finished_lines(path) if finished else read_lines(path)
        if name == "metrics" or found:
            write_text(getattr(folder, name), "".join(json.dumps(line) + "\n" for line in found))
    write_results(folder.results, chain.from_iterable(rows))


def train(
    settings: RunSettings,
    corpus: Corpus,
    out: AnyPath,
    progress: Progress,
    command: str = "train",
    finish: Callable[[Path], object] | None = None,
) -> None:
    """One run in a folder of its own, or what is left of it.

    Args:
        settings: of the run.
        corpus: training and held-out tokens.
        out: run folder, new or of the same run.
        progress: told what is going on.
        command: its name in config.json.
        finish: given the folder when all is done, before another process may write there.

    Raises:
        ArgumentError: sizes that do not fit, too little data, or another run in `out`.
        RunError: `out` cannot be written or is damaged.
    """
    out = Path(out)
    with together(settings, [settings.preset], corpus) as deciding:
        if deciding:
            with claimed(out, config_of(settings, command, corpus)) as folder:
                _draw(out, settings, [settings.preset], corpus.vocab_size)
                Run(settings, corpus, folder, progress).complete()
                if finish:
                    finish(out)
