"""Show progress on standard error: a bar on a terminal, elsewhere a line a finished stage."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from hessblocks.escape import printable
from hessblocks.progress import Progress


def task_bars(*columns: ProgressColumn, field: str, transient: bool = True) -> Bars:
    """Make bars on standard error: what, how far, the columns, and a field of the task."""
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,
        TextColumn(f"{{task.fields[{field}]}}", markup=False),
        console=Console(stderr=True),
        transient=transient,
    )


class BarProgress(Progress):
    """One bar for the stage under way, a pulse where its steps are not counted."""

    def note(self, text: str) -> None:
        """Write the line."""
        print(printable(text), file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        """Show a bar meanwhile."""
        columns = TimeElapsedColumn(), TimeRemainingColumn()
        with super().stage(name, detail, total), task_bars(*columns, field="loss") as self._bars:
            self._task = self._bars.add_task(printable(f"{name} {detail}"), total=total, loss="")
            yield

    def step(self, done: int, loss: float | None) -> None:
        """Move the bar."""
        shown = "" if loss is None else f"loss {loss:.3f}"
        self._bars.update(self._task, completed=done, loss=shown)


class LineProgress(Progress):
    """A line when a stage is over."""

    def note(self, text: str) -> None:
        """Write the line."""
        print(printable(text), file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        """Say what is over, its time and its last loss."""
        self._loss, start = "", time.perf_counter()
        try:
            with super().stage(name, detail, total):
                yield
        finally:
            what, seconds = printable(f"{name} {detail}".strip()), time.perf_counter() - start
            print(f"{what}: {seconds:.1f} s{self._loss}", file=sys.stderr, flush=True)

    def step(self, done: int, loss: float | None) -> None:
        """Remember the last loss."""
        self._loss = "" if loss is None else f", training loss {loss:.3f}"


def make_progress() -> Progress:
    """Choose a bar on a terminal, else lines; of several processes the first shows it."""
    if os.environ.get("RANK", "0") != "0":
        return Progress()
    return BarProgress() if sys.stderr.isatty() else LineProgress()
