"""How far a study is, for whoever shows it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class StudyProgress:
    """Where a study stands."""

    study: str
    """Its name."""
    done: int
    """Points finished, those of earlier runs included."""
    total: int
    """All points."""
    failed: int = 0
    """Points that failed in this run."""
    seconds_left: float | None = None
    """Time to go at the pace so far; None before the first point."""


class Reporter(Protocol):
    """Shows progress; `hessblocks.cli` has one for the terminal."""

    def show(self, progress: StudyProgress) -> None:
        """Called once at the start and after every point."""


class Silent:
    """Shows nothing."""

    def show(self, progress: StudyProgress) -> None:
        """See `Reporter`."""


class Pace:
    """Counts points and works out the time left."""

    def __init__(self, study: str, done: int, total: int) -> None:
        self._study, self._before, self._total = study, done, total
        self._finished = self._failed = 0
        self._start = time.monotonic()

    def now(self, *, finished: int = 0, failed: int = 0) -> StudyProgress:
        """Count points that finished and failed since the last call; say where the study stands."""
        self._finished += finished
        self._failed += failed
        seen = self._finished + self._failed
        left = self._total - self._before - seen
        pace = (time.monotonic() - self._start) / seen if seen else None
        return StudyProgress(
            study=self._study,
            done=self._before + self._finished,
            total=self._total,
            failed=self._failed,
            seconds_left=None if pace is None else pace * left,
        )
