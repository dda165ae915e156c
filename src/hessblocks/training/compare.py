"""Several presets and seeds in one folder, each trained on the same data in the same order."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from hessblocks.data import Corpus
from hessblocks.errors import ArgumentError
from hessblocks.files import write_text
from hessblocks.training import metrics
from hessblocks.training.checks import check_choice
from hessblocks.training.execution import together
from hessblocks.training.folder import RunFolder, claimed
from hessblocks.training.matching import MATCHES, steps_of
from hessblocks.training.observation import CurvatureSettings
from hessblocks.training.progress import Progress
from hessblocks.training.results import is_trained, read_rows, write_rows
from hessblocks.training.run import Run
from hessblocks.training.settings import (
    RunSettings,
    SharedSettings,
)


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(SharedSettings):
    """What is compared, and how."""

    presets: Sequence[str]
    """Names of the blocks, each once."""
    seeds: Sequence[int] = (0,)
    """Each block is trained once with each."""
    match: str = "steps"
    """What every preset gets as much of as the first: steps, tokens, time or flops. `training.steps`
    are those of the first."""
    curvature: CurvatureSettings = field(default_factory=CurvatureSettings)
    """Curvature of every model before and after training."""

    def __post_init__(self) -> None:
        """Check names and numbers."""
        super().__post_init__()
        for name, values in (("presets", self.presets), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise ArgumentError(
                    f"--{name}: expected one or more, each once, got {', '.join(map(str, values)) or 'none'}."
                )
        check_choice("match", self.match, MATCHES)

    def runs(self, steps: Mapping[str, int] | None = None) -> list[RunSettings]:
        """Every run, seed by seed.

        Args:
            steps: of each preset; those of the settings by default.
        """
        own = steps or {}
        return [
            RunSettings(
                preset=preset,
                seed=seed,
                model=self.model,
                training=replace(self.training, steps=own.get(preset, self.training.steps)),
                curvature=self.curvature,
                observation=self.observation,
                device=self.device,
            )
            for seed in self.seeds
            for preset in self.presets
        ]

    def config(self, command: str, corpus: Corpus) -> dict[str, Any]:
        """All that the numbers depend on, as JSON values."""
        return {
            "command": command,
            "presets": list(self.presets),
            "seeds": list(self.seeds),
            "match": self.match,
            **self.shared_config(corpus),
        }


def compare(
    settings: ComparisonSettings,
    corpus: Corpus,
    out: Path,
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
    with together(settings, settings.presets, corpus) as deciding:
        if deciding:
            _compare(settings, corpus, out, progress, command, finish)


def _compare(
    settings: ComparisonSettings,
    corpus: Corpus,
    out: Path,
    progress: Progress,
    command: str,
    finish: Callable[[Path], object] | None,
) -> None:
    config = settings.config(command, corpus)
    with claimed(out, config, growing=("presets", "seeds")) as folder:
        runs = settings.runs(steps_of(settings, corpus, folder, progress))
        for run in runs:
            own = folder.run(run.preset, run.seed)
            own.prepare(run.config(command, corpus))
            Run(run, corpus, own, progress).complete()
            _gather(folder, runs, corpus.vocab_size)
        if finish:
            finish(out)


def _gather(folder: RunFolder, settings: Sequence[RunSettings], vocab_size: int) -> None:
    """Put the tables of the runs so far into the folder of the comparison, once all are read."""
    runs = [(run, folder.run(run.preset, run.seed)) for run in settings]
    rows = [read_rows(own.results) for _, own in runs]
    expected = [
        run.line_files(vocab_size) if is_trained(found) else ()
        for (run, _), found in zip(runs, rows, strict=True)
    ]
    for name in ("metrics", "observations"):
        paths = [getattr(own, name) for _, own in runs]
        if name == "metrics" or any(path.exists() for path in paths):
            lines = _lines(paths, [name in files for files in expected])
            write_text(getattr(folder, name), "".join(json.dumps(line) + "\n" for line in lines))
    write_rows(folder.results, chain.from_iterable(rows))


def _lines(paths: Sequence[Path], whole: Sequence[bool]) -> list[dict[str, Any]]:
    return [
        line
        for path, finished in zip(paths, whole, strict=True)
        for line in (metrics.read_finished if finished else metrics.read)(path)
    ]
