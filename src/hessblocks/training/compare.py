"""Several presets and seeds in one folder, each trained on the same data in the same order."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from hessblocks.data import Corpus
from hessblocks.errors import ArgumentError
from hessblocks.files import write_text
from hessblocks.training import metrics
from hessblocks.training.folder import RunFolder, claimed
from hessblocks.training.progress import Progress
from hessblocks.training.results import is_trained, read_rows, write_rows
from hessblocks.training.run import Run
from hessblocks.training.settings import (
    CurvatureSettings,
    ModelSettings,
    RunSettings,
    TrainingSettings,
    shared_config,
)


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings:
    """What is compared, and how."""

    presets: Sequence[str]
    """Names of the blocks, each once."""
    seeds: Sequence[int] = (0,)
    """Each block is trained once with each."""
    model: ModelSettings = field(default_factory=ModelSettings)
    """Sizes of every model."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """How every model is trained."""
    curvature: CurvatureSettings = field(default_factory=CurvatureSettings)
    """Curvature of every model before and after training."""
    device: str = "cpu"
    """cpu or cuda."""

    def __post_init__(self) -> None:
        """Check the names."""
        for name, values in (("presets", self.presets), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise ArgumentError(
                    f"--{name}: expected one or more, each once, got {', '.join(map(str, values)) or 'none'}."
                )
        if self.curvature.tokens > self.model.context:
            raise ArgumentError(
                f"--curvature-tokens: {self.curvature.tokens} are longer than the context of "
                f"{self.model.context}; ask for fewer."
            )

    @property
    def runs(self) -> list[RunSettings]:
        """Every run, seed by seed."""
        return [
            RunSettings(
                preset=preset,
                seed=seed,
                model=self.model,
                training=self.training,
                curvature=self.curvature,
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
            **shared_config(self.model, self.training, self.curvature, self.device, corpus),
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
    for run in settings.runs:
        run.model.check(run.preset, corpus)
    corpus.curvature_batch(settings.curvature.sequences, settings.curvature.tokens)
    with claimed(out, settings.config(command, corpus)) as folder:
        for run in settings.runs:
            own = folder.run(run.preset, run.seed)
            own.prepare(run.config(command, corpus))
            Run(run, corpus, own, progress).complete()
            _gather(folder, settings)
        if finish:
            finish(out)


def _gather(folder: RunFolder, settings: ComparisonSettings) -> None:
    """Put the tables of the runs so far into the folder of the comparison, once all are read."""
    runs = [folder.run(run.preset, run.seed) for run in settings.runs]
    rows = [read_rows(run.results) for run in runs]
    lines = [
        line
        for run, own in zip(runs, rows, strict=True)
        for line in (metrics.read_finished if is_trained(own) else metrics.read)(run.metrics)
    ]
    write_text(folder.metrics, "".join(json.dumps(line) + "\n" for line in lines))
    write_rows(folder.results, chain.from_iterable(rows))
