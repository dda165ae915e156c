"""How far a study is, for whoever shows it."""

import time
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class StudyProgress:
    """Progress of a study."""

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
    """Works out the time left."""

    def __init__(self, study: str, done: int, total: int) -> None:
        self._study, self._before, self._total = study, done, total
        self._start = time.monotonic()

    def now(self, finished: int = 0, failed: int = 0) -> StudyProgress:
        """Tell where the study stands after so many points of this run."""
        seen = finished + failed
        left = self._total - self._before - seen
        spent = time.monotonic() - self._start
        return StudyProgress(
            study=self._study,
            done=self._before + finished,
            total=self._total,
            failed=failed,
            seconds_left=spent / seen * left if seen else None,
        )
