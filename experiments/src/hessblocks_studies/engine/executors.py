"""Where points are measured: in this process here, in others in `workers.py` and `cluster.py`."""

import abc
import contextlib
import math
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch

from hessblocks.errors import HessblocksError, RunError
from hessblocks.storage import Row
from hessblocks_studies.engine.point import Measure, Outcome, Point

MOST_ATTEMPTS = 3
"""Times a point is started before a dying worker is taken to be the point's fault."""


class Executor(abc.ABC):
    """Measures points, in any order."""

    @abc.abstractmethod
    def outcomes(self, measure: Measure[Any], points: Sequence[Point]) -> Generator[Outcome]:
        """Yield the outcome of each point as it finishes; closed earlier, it drops the others.

        Args:
            measure: from settings to rows.
            points: to be measured.

        Raises:
            RunError: workers cannot be had at all; what a single point raises is in its outcome.
        """

    def close(self) -> None:  # noqa: B027
        """Let go of workers; without effect where there are none."""


class InProcess(Executor):
    """One after the other, here."""

    def outcomes(self, measure: Measure[Any], points: Sequence[Point]) -> Generator[Outcome]:
        """See `Executor`."""
        for point in points:
            yield attempt(measure, point, attempts=1)


def attempt(measure: Measure[Any], point: Point, attempts: int) -> Outcome:
    """Measure one point on one thread; an exception becomes the outcome's error."""
    start = time.perf_counter()
    try:
        with _one_thread():
            rows = tuple(measure(point.settings))
        _check_finite(rows)
    except HessblocksError as error:
        return Outcome(point=point, attempts=attempts, error=str(error))
    except Exception as error:
        return Outcome(point=point, attempts=attempts, error=f"{type(error).__name__}: {error}")
    return Outcome(point=point, rows=rows, seconds=time.perf_counter() - start, attempts=attempts)


def _check_finite(rows: Sequence[Row]) -> None:
    """Refuse numbers that no store can hold.

    Raises:
        RunError: names the row and the column.
    """
    for number, row in enumerate(rows, start=1):
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise RunError(f"{name} of its row {number} is {value}, not a finite number.")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: the digits then do not depend on where a point is measured."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def after_death(point: Point, attempts: int) -> Outcome | None:
    """The outcome of a point whose worker died; None means: start it again."""
    if attempts < MOST_ATTEMPTS:
        return None
    return Outcome(
        point=point,
        attempts=attempts,
        error=f"its worker died {attempts} times; there may be too little memory for it",
    )
