"""What is going on, on standard error: a bar on a terminal, a line for each finished stage elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from hessblocks.training import Progress


class BarProgress(Progress):
    """One bar for the stage under way."""

    def __init__(self) -> None:
        super().__init__()
        self._bars: Bars | None = None

    def begin(self, name: str, detail: str, total: int | None) -> None:
        """Show a bar, or a pulse where steps are not counted."""
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._bars.start()
        self._bars.add_task(f"{name} {detail}", total=total, loss="")

    def step(self, done: int, loss: float | None) -> None:
        """Move the bar."""
        if self._bars:
            shown = "" if loss is None else f"loss {loss:.3f}"
            self._bars.update(self._bars.task_ids[0], completed=done, loss=shown)

    def end(self) -> None:
        """Take the bar away."""
        if self._bars:
            self._bars.stop()
            self._bars = None


class LineProgress(Progress):
    """A line when a stage is over."""

    def begin(self, name: str, detail: str, total: int | None) -> None:
        """Remember what began."""
        self._what = f"{name} {detail}".strip()
        self._loss = ""
        self._begun = time.perf_counter()

    def step(self, done: int, loss: float | None) -> None:
        """Remember the last loss."""
        self._loss = "" if loss is None else f", training loss {loss:.3f}"

    def end(self) -> None:
        """Say what is over."""
        seconds = time.perf_counter() - self._begun
        print(f"{self._what}: {seconds:.1f} s{self._loss}", file=sys.stderr, flush=True)


def make_progress() -> Progress:
    """A bar where standard error is a terminal, else lines; of several processes the first shows it."""
    if os.environ.get("RANK", "0") != "0":
        return Progress()
    return BarProgress() if sys.stderr.isatty() else LineProgress()


@contextlib.contextmanager
def counter(total: int) -> Iterator[Callable[[str], None]]:
    """A bar of `total` named steps on a terminal, nothing elsewhere; call it as each step begins."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=total)
        yield lambda name: bars.update(task, description=name, advance=1)
