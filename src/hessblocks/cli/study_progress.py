"""How far a study is, on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from hessblocks.studies import Progress, Reporter

EVERY = 60.0
"""Seconds between lines."""


class BarReporter:
    """One bar a study."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def show(self, progress: Progress) -> None:
        """Move the study's bar."""
        if progress.study not in self._tasks:
            self._tasks[progress.study] = self._bars.add_task(
                progress.study, total=progress.total, left=""
            )
        self._bars.update(
            self._tasks[progress.study],
            completed=progress.done + progress.failed,
            left=time_left(progress),
        )


class LineReporter:
    """A line when a study begins and when it is over, and one a minute in between."""

    def __init__(self) -> None:
        self._said = 0.0

    def show(self, progress: Progress) -> None:
        """Write where the study stands, where that is due."""
        over = progress.done + progress.failed == progress.total
        now = time.monotonic()
        if over or progress.seconds_left is None or now - self._said >= EVERY:
            self._said = now
            counted = f"{progress.done} of {progress.total} points"
            failed = f", {progress.failed} failed" if progress.failed else ""
            left = f", {time_left(progress)}" if progress.seconds_left and not over else ""
            print(f"{progress.study}: {counted}{failed}{left}", file=sys.stderr, flush=True)


def time_left(progress: Progress) -> str:
    """Time to go, in hours, minutes and seconds."""
    if progress.seconds_left is None:
        return ""
    return f"{timedelta(seconds=round(progress.seconds_left))} left"


@contextlib.contextmanager
def make_reporter() -> Iterator[Reporter]:
    """Bars where standard error is a terminal, else lines."""
    if not sys.stderr.isatty():
        yield LineReporter()
        return
    with Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
    ) as bars:
        yield BarReporter(bars)
