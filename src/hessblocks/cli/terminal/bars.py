"""Show progress on standard error: a bar on a terminal, elsewhere a line per finished stage."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import rich.progress
from rich.console import Console

from hessblocks.escape import printable
from hessblocks.progress import Progress


def task_bars(
    *columns: rich.progress.ProgressColumn, field: str, **options: Any
) -> rich.progress.Progress:
    """Make bars on standard error: description, progress, the columns, and a field of the task."""
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        *columns,
        rich.progress.TextColumn(f"{{task.fields[{field}]}}", markup=False),
        console=Console(stderr=True),
        **options,
    )


class ScreenProgress(Progress):
    """A bar for the stage under way on a terminal; elsewhere a line when a stage is over."""

    def note(self, text: str) -> None:
        """Write the line."""
        print(printable(text), file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        """Show a bar while the stage runs, or one line when it ends: its time and its last loss."""
        what, start, self._loss = printable(f"{name} {detail}".strip()), time.perf_counter(), ""
        hidden = not sys.stderr.isatty()
        columns = rich.progress.TimeElapsedColumn(), rich.progress.TimeRemainingColumn()
        self._bars = task_bars(*columns, field="loss", transient=True, disable=hidden)
        try:
            with super().stage(name, detail, total), self._bars:
                self._task = self._bars.add_task(what, total=total, loss="")
                yield
        finally:
            if hidden:
                told = f", training {self._loss}" if self._loss else ""
                self.note(f"{what}: {time.perf_counter() - start:.1f} s{told}")

    def step(self, done: int, loss: float | None) -> None:
        """Move the bar, and remember the last loss."""
        self._loss = "" if loss is None else f"loss {loss:.3f}"
        self._bars.update(self._task, completed=done, loss=self._loss)


def make_progress() -> Progress:
    """Choose how stages are shown; of several processes only the first shows them."""
    return ScreenProgress() if os.environ.get("RANK", "0") == "0" else Progress()
