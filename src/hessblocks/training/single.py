"""One run in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hessblocks.data import Corpus
from hessblocks.training.execution import together
from hessblocks.training.folder import claimed
from hessblocks.training.progress import Progress
from hessblocks.training.run import Run
from hessblocks.training.settings import RunSettings


def train(
    settings: RunSettings,
    corpus: Corpus,
    out: Path,
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
    with together(settings, [settings.preset], corpus) as deciding:
        if deciding:
            with claimed(out, settings.config(command, corpus)) as folder:
                Run(settings, corpus, folder, progress).complete()
                if finish:
                    finish(out)
