"""Progress of a study, and the interface of its displays."""

import time
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class StudyProgress:
    """Progress of a study at one time."""

    study: str
    """Name of the study."""
    done: int
    """Number of finished points, including those of earlier runs."""
    total: int
    """Number of all points."""
    failed: int = 0
    """Number of points that failed in this run."""
    seconds_left: float | None = None
    """Estimated seconds until the end; None before the first point of this run."""


class Reporter(Protocol):
    """Interface of progress displays; `study_bars` implements it for the terminal."""

    def show(self, progress: StudyProgress) -> None:
        """Show the progress; called once at the start and after every point."""


class Silent:
    """Reporter without output."""

    def show(self, progress: StudyProgress) -> None:
        """Show nothing."""


class Pace:
    """Estimate of the remaining time."""

    def __init__(self, study: str, done: int, total: int) -> None:
        self._study, self._before, self._total = study, done, total
        self._start = time.monotonic()

    def now(self, finished: int = 0, failed: int = 0) -> StudyProgress:
        """Return the progress after this run has finished some points and some have failed."""
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
