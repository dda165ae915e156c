"""Show the progress of studies on standard error: bars on a terminal, otherwise lines."""

import contextlib
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

from rich.progress import MofNCompleteColumn, Progress, TaskID

from hessblocks.cli.terminal import task_bars
from hessblocks_studies.engine import Reporter, StudyProgress

EVERY = 60.0
"""Seconds between lines."""


class BarReporter:
    """Reporter with one bar per study."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def show(self, progress: StudyProgress) -> None:
        """Update the study's bar."""
        study, over = progress.study, progress.done + progress.failed
        if study not in self._tasks:
            self._tasks[study] = self._bars.add_task(study, total=progress.total, left="")
        self._bars.update(self._tasks[study], completed=over, left=time_left(progress))


class LineReporter:
    """Reporter with a line at the start and the end of a study, and one per minute in between."""

    def __init__(self) -> None:
        self._said = 0.0

    def show(self, progress: StudyProgress) -> None:
        """Write a line of progress if one is due."""
        over = progress.done + progress.failed == progress.total
        now = time.monotonic()
        if over or progress.seconds_left is None or now - self._said >= EVERY:
            self._said = now
            failed = f", {progress.failed} failed" if progress.failed else ""
            left = f", {time_left(progress)}" if progress.seconds_left and not over else ""
            counted = f"{progress.study}: {progress.done} of {progress.total} points"
            print(f"{counted}{failed}{left}", file=sys.stderr, flush=True)


def time_left(progress: StudyProgress) -> str:
    """Format the remaining time in hours, minutes and seconds."""
    if progress.seconds_left is None:
        return ""
    return f"{timedelta(seconds=round(progress.seconds_left))} left"


@contextlib.contextmanager
def make_reporter() -> Iterator[Reporter]:
    """Choose bars if standard error is a terminal, otherwise lines."""
    if not sys.stderr.isatty():
        yield LineReporter()
        return
    with task_bars(MofNCompleteColumn(), field="left", transient=False) as bars:
        yield BarReporter(bars)
