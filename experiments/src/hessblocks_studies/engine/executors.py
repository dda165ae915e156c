"""Executors measure points: here in this process; see also `workers.py` and `cluster.py`."""

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
"""Attempts to measure a point; if the worker dies each time, the point counts as failed."""


class Executor(abc.ABC):
    """Base class of executors, which measure points in any order."""

    @abc.abstractmethod
    def outcomes(self, measure: Measure[Any], points: Sequence[Point]) -> Generator[Outcome]:
        """Yield the outcome of each point as it finishes; on an early close, drop the other points.

        Args:
            measure: function from settings to rows.
            points: points to measure.

        Raises:
            RunError: there are no workers. Errors of single points are in their outcomes.
        """

    def close(self) -> None:  # noqa: B027
        """Release the workers, if there are any."""


class InProcess(Executor):
    """Measure points one after another in this process."""

    def outcomes(self, measure: Measure[Any], points: Sequence[Point]) -> Generator[Outcome]:
        """Yield the outcome of each point; see `Executor`."""
        for point in points:
            yield attempt(measure, point, attempts=1)


def attempt(measure: Measure[Any], point: Point, attempts: int) -> Outcome:
    """Measure one point on one thread; convert an exception to the outcome's error."""
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
    """Check that all numbers are finite, since a store holds no others.

    Raises:
        RunError: a number is not; the message names the row and the column.
    """
    for number, row in enumerate(rows, start=1):
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise RunError(f"{name} of its row {number} is {value}, not a finite number.")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread, so that results do not depend on where a point is measured."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def after_death(point: Point, attempts: int) -> Outcome | None:
    """Return the outcome of a point whose worker died; None means that the point must restart."""
    if attempts < MOST_ATTEMPTS:
        return None
    return Outcome(
        point=point,
        attempts=attempts,
        error=f"its worker died {attempts} times; there may be too little memory for it",
    )
