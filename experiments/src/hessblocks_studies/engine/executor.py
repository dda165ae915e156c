"""Measure points in this process, or by joblib in several processes or on a Ray cluster."""

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from multiprocessing import resource_tracker
from typing import Any

import torch
from joblib import Parallel, delayed
from joblib.externals.loky.backend import resource_tracker as loky_tracker

from hessblocks.errors import ArgumentError, HessblocksError, RunError
from hessblocks.malloc import keep_freed_memory
from hessblocks.storage import Row
from hessblocks_studies.engine.cluster import RayCluster
from hessblocks_studies.engine.point import Measure, Outcome, Point

MOST_ATTEMPTS = 3
"""Attempts to measure a point; if the worker dies each time, the point counts as failed."""


class Executor:
    """Measures points in any order.

    When a worker dies, all points that were running start again, each alone, so that the one at
    fault loses no other.
    """

    def __init__(self, workers: int | None = None, ray: str | None = None) -> None:
        """Choose this process, or workers; local ones have one thread, and at most one accelerator.

        Args:
            workers: processes on this machine, which start with the first point; each needs about
                300 MB of memory to import torch.
            ray: address of a Ray cluster, as `RayCluster` takes it.

        Raises:
            ArgumentError: both are given, or fewer than one worker.
            RunError: no cluster answers.
        """
        if workers is not None and ray is not None:
            raise ArgumentError("ray: give either ray or workers, not both")
        if workers is not None and workers < 1:
            raise ArgumentError(f"workers: expected at least 1, got {workers}")
        self.workers = workers
        self.cluster = RayCluster(ray) if ray is not None else None

    def outcomes(self, measure: Measure[Any], points: Sequence[Point]) -> Generator[Outcome]:
        """Yield the outcome of each point as it finishes; on an early close, drop the other points.

        Args:
            measure: function from settings to rows.
            points: points to measure.

        Raises:
            RunError: there are no workers. Errors of single points are in their outcomes.
        """
        if self.workers is None and self.cluster is None:
            yield from (attempt(measure, point, attempts=1) for point in points)
            return
        waiting = dict.fromkeys(points, 1)
        suspects: dict[Point, int] = {}  # those that were running when a worker died
        lost_starts = 0
        while chosen := suspects or waiting:
            tasks, outcomes = list(chosen.items())[: 1 if suspects else None], None
            running: list[Point] = []
            try:
                outcomes = self._parallel(measure, tasks, running)
                for outcome in outcomes:
                    running.remove(outcome.point)
                    del chosen[outcome.point]
                    yield outcome
            except self._deaths as error:
                lost_starts += not running
                if lost_starts == MOST_ATTEMPTS:
                    raise RunError("--ray: workers die as they start; see Ray's logs.") from error
                for point in running:
                    attempts = chosen.pop(point)
                    if attempts < MOST_ATTEMPTS:
                        suspects[point] = attempts + 1
                    else:
                        said = f"its worker died {attempts} times; there may be too little memory"
                        yield Outcome(point=point, attempts=attempts, error=f"{said} for it")
            finally:
                if outcomes:
                    with warnings.catch_warnings(action="ignore", category=UserWarning):
                        outcomes.close()  # joblib warns of points that an early close drops

    def close(self) -> None:
        """Disconnect from the cluster; local workers end when idle, or with this process."""
        if self.cluster:
            self.cluster.close()

    @property
    def _deaths(self) -> tuple[type[Exception], ...]:
        """Errors that tell of a dead worker."""
        return (BrokenExecutor, *(self.cluster.deaths if self.cluster else ()))

    def _parallel(
        self, measure: Measure[Any], tasks: Sequence[tuple[Point, int]], running: list[Point]
    ) -> Generator[Outcome]:
        """Start to measure points in workers.

        joblib runs a single worker in this process, which the death of a point would end; so there
        are at least two, of which one may wait.

        Args:
            measure: function from settings to rows.
            tasks: points and the numbers of their attempts.
            running: gets each point that is begun.

        Returns:
            The outcomes in the order in which they come.
        """

        def calls() -> Iterator[Any]:
            for point, attempts in tasks:
                running.append(point)
                yield delayed(attempt)(measure, point, attempts)

        options: dict[str, Any]
        if self.cluster:
            slots, options = self.cluster.options(tasks[0][0])
        else:
            devices, slots = accelerators(), self.workers or 1
            if devices and any(point.gpus for point, _ in tasks):
                slots = min(slots, len(devices))
            options = {"initializer": _start_worker, "initargs": (os.getpid(), devices)}
        width = min(slots, len(tasks))
        parallel = Parallel(
            max(width, 2),
            batch_size=1,
            pre_dispatch=width,
            return_as="generator_unordered",
            **options,
        )
        with _deaf():
            outcomes: Generator[Outcome] = parallel(calls())
        return outcomes


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


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Block terminal signals in processes that start here; this process terminates them instead."""
    for tracker in (resource_tracker, loky_tracker):
        tracker.ensure_running()  # otherwise it starts with a worker, and unblocks the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accelerators() -> list[str]:
    """List the accelerators that this process may use, in the format of CUDA_VISIBLE_DEVICES."""
    if not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]


def _start_worker(parent: int, devices: Sequence[str]) -> None:
    """Give a new worker its accelerator by its number, and end it with the parent process."""
    if devices:
        number = int(multiprocessing.current_process().name.rpartition("-")[2])
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    keep_freed_memory()


def _end_with(parent: int) -> None:
    """Exit when the parent process has ended, since no process would store the result."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
