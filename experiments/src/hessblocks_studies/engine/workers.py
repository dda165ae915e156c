"""Points measured by processes of this machine."""

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
"""Function, point and number of the attempt."""


class LocalProcesses(Executor):
    """Some processes, one thread each; what a dead one had in hand is started again.

    Where there are accelerators each process sees one, and points that need one have a process
    each.
    """

    def __init__(self, workers: int) -> None:
        """Fix the number of processes; they start with the first point and stay until `close`.

        Args:
            workers: at least 1; each reserves what importing torch costs, about 300 MB.

        Raises:
            ArgumentError: fewer than one.
        """
        if workers < 1:
            raise ArgumentError(f"workers: expected at least 1, got {workers}")
        self.workers = workers
        self._crew: list[_Worker] = []

    def outcomes(self, measure: Measure[Any], points: Sequence[Point]) -> Generator[Outcome]:
        """See `Executor`."""
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
        """End the processes, whatever they are doing."""
        for worker in self._crew:
            worker.stop()
        self._crew = []


class _Worker:
    """A process that measures one point at a time."""

    def __init__(self, device: str | None) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.task: Task | None = None
        self._process = _SPAWN.Process(target=_serve, args=(theirs, device), daemon=True)
        with _deaf():
            self._process.start()
        theirs.close()

    def take(self, task: Task) -> None:
        """Hand the process a point; a process that is dead already shows in `collect`."""
        self.task = task
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def collect(self) -> tuple[Outcome | None, Task | None]:
        """Receive from the process an outcome, or a task to start again elsewhere."""
        assert self.task is not None
        (measure, point, attempts), self.task = self.task, None
        try:
            return self.connection.recv(), None
        except (EOFError, OSError):
            self.stop()
        lost = after_death(point, attempts)
        return lost, None if lost else (measure, point, attempts + 1)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.connection.close()
        self._process.terminate()
        self._process.join()


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that hear no signal of the terminal, which ends them through this one."""
    # else it is started with the process, and lets signals through
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accelerators() -> list[str]:
    """Names of the accelerators that this process may use, as CUDA_VISIBLE_DEVICES takes them."""
    if not torch.cuda.is_available():
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(n) for n in range(torch.cuda.device_count())]


def _turn(devices: Sequence[str], place: int) -> str | None:
    """The accelerator of the worker at a place of the crew."""
    return devices[place % len(devices)] if devices else None


def _serve(connection: Connection, device: str | None) -> None:
    """The life of a worker: measure what comes, until nobody asks any more."""
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
    """Keep what the first point imported out of later collections, one at each Trainer's run."""
    gc.collect()
    gc.freeze()


def _end_with_parent() -> None:
    """Leave at once when the process that asked is gone: nobody would store the result."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
