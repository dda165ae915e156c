"""Show progress on standard error: a bar on a terminal, elsewhere one line per finished stage."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import rich.progress
from rich.console import Console

from hessblocks.escape import printable
from hessblocks.progress import Progress

EVERY = 60.0
"""Seconds between two lines about a stage, off a terminal."""


def task_bars(
    *columns: rich.progress.ProgressColumn, field: str, **options: Any
) -> rich.progress.Progress:
    """Make progress bars on standard error: description, bar, `columns`, a field of the task."""
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        *columns,
        rich.progress.TextColumn(f"{{task.fields[{field}]}}", markup=False),
        console=Console(stderr=True),
        **options,
    )


class ScreenProgress(Progress):
    """Progress with a bar for the current stage, or one line per finished stage off a terminal."""

    def note(self, text: str) -> None:
        """Print the line on standard error."""
        print(printable(text), file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        """Show a bar while the stage runs, or one line at its end: time and last loss."""
        label, start, self._loss = printable(f"{name} {detail}".strip()), time.perf_counter(), ""
        hidden, ended = not sys.stderr.isatty(), threading.Event()

        def tell() -> None:
            while not ended.wait(EVERY):
                self.note(
                    f"{label}: {time.perf_counter() - start:.0f} s so far {self._loss}".strip()
                )

        if hidden:
            threading.Thread(target=tell, daemon=True).start()
        columns = rich.progress.TimeElapsedColumn(), rich.progress.TimeRemainingColumn()
        self._bars = task_bars(*columns, field="loss", transient=True, disable=hidden)
        try:
            with super().stage(name, detail, total), self._bars:
                self._task = self._bars.add_task(label, total=total, loss="")
                yield
        finally:
            ended.set()
            if hidden:
                loss = f", training {self._loss}" if self._loss else ""
                self.note(f"{label}: {time.perf_counter() - start:.1f} s{loss}")

    def step(self, done: int, loss: float | None) -> None:
        """Advance the bar, and store the last loss."""
        self._loss = "" if loss is None else f"loss {loss:.3f}"
        self._bars.update(self._task, completed=done, loss=self._loss)
