"""Measure points with several processes on this machine."""

import contextlib
import functools
import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from hessblocks.errors import ArgumentError
from hessblocks.malloc import keep_freed_memory
from hessblocks_studies.engine.executors import Executor, after_death, attempt
from hessblocks_studies.engine.point import Measure, Outcome, Point

_SPAWN = multiprocessing.get_context("spawn")
Task = tuple[Measure[Any], Point, int]
"""Measuring function, point and number of the attempt."""


class LocalProcesses(Executor):
    """Executor with worker processes of one thread each; points of a dead worker start again.

    If there are accelerators, each process uses one. Points that need one are then measured by at
    most one process per accelerator.
    """

    def __init__(self, workers: int) -> None:
        """Set the number of processes; they start with the first point and run until `close`.

        Args:
            workers: at least 1; each needs about 300 MB of memory to import torch.

        Raises:
            ArgumentError: fewer than one worker.
        """
        if workers < 1:
            raise ArgumentError(f"workers: expected at least 1, got {workers}")
        self.workers = workers
        self._crew: list[_Worker] = []

    def outcomes(self, measure: Measure[Any], points: Sequence[Point]) -> Generator[Outcome]:
        """Yield the outcome of each point; see `Executor`."""
        waiting: deque[Task] = deque((measure, point, 1) for point in points)
        devices = accelerators()
        workers = min(self.workers, len(points))
        if devices and any(point.gpus for point in points):
            workers = min(workers, len(devices))
        while len(self._crew) < workers:
            self._crew.append(_Worker(_turn(devices, len(self._crew))))
        for worker in self._crew[:workers]:
            worker.take(waiting.popleft())
        try:
            while busy := {worker.connection: worker for worker in self._crew if worker.task}:
                for ready in wait(list(busy)):
                    worker = busy[ready]  # type: ignore[index]  # wait returns what it was given
                    outcome, again = worker.collect()
                    if again is not None:
                        waiting.appendleft(again)
                    if worker.connection.closed:
                        place = self._crew.index(worker)
                        self._crew[place] = worker = _Worker(_turn(devices, place))
                    if waiting:
                        worker.take(waiting.popleft())
                    if outcome is not None:
                        yield outcome
        finally:
            for worker in [worker for worker in self._crew if worker.task]:
                worker.stop()
                self._crew.remove(worker)

    def close(self) -> None:
        """Terminate the processes, also during a measurement."""
        for worker in self._crew:
            worker.stop()
        self._crew = []


class _Worker:
    """Process that measures one point at a time."""

    def __init__(self, device: str | None) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.task: Task | None = None
        self._process = _SPAWN.Process(target=_serve, args=(theirs, device), daemon=True)
        with _deaf():
            self._process.start()
        theirs.close()

    def take(self, task: Task) -> None:
        """Send the process a point; if the process is dead, `collect` detects it."""
        self.task = task
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def collect(self) -> tuple[Outcome | None, Task | None]:
        """Receive an outcome; if the process died, return its task to start again, if allowed."""
        assert self.task is not None
        (measure, point, attempts), self.task = self.task, None
        try:
            return self.connection.recv(), None
        except (EOFError, OSError):
            self.stop()
        lost = after_death(point, attempts)
        return lost, None if lost else (measure, point, attempts + 1)

    def stop(self) -> None:
        """Terminate the process, also during a measurement."""
        self.connection.close()
        self._process.terminate()
        self._process.join()


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Block terminal signals in processes that start here; this process terminates them instead."""
    # otherwise it starts with the process, and unblocks the signals
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accelerators() -> list[str]:
    """List the accelerators that this process may use, in the format of CUDA_VISIBLE_DEVICES."""
    if not torch.cuda.is_available():
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(n) for n in range(torch.cuda.device_count())]


def _turn(devices: Sequence[str], place: int) -> str | None:
    """Return the accelerator of worker number `place`; None without accelerators."""
    return devices[place % len(devices)] if devices else None


def _serve(connection: Connection, device: str | None) -> None:
    """Measure the points from the connection until it is closed; main function of a worker."""
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    while True:
        try:
            measure, point, attempts = connection.recv()
        except EOFError:
            return
        connection.send(attempt(measure, point, attempts))
        _freeze_imports()


@functools.cache
def _freeze_imports() -> None:
    """Exclude the first point's imports from later garbage collections, one per training run."""
    gc.collect()
    gc.freeze()


def _end_with_parent() -> None:
    """Exit when the parent process has ended, since no process would store the result."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
