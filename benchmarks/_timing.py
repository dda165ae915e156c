"""Seconds of several sides that take turns in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TypeVar

import torch

from hessblocks.linalg import LinearOperator

BLOCKS = ExitStack()
Operator = TypeVar("Operator", bound=LinearOperator)


def kept(operator: Operator) -> Operator:
    """Return an operator that keeps its graphs until the process ends."""
    BLOCKS.enter_context(operator.kept())
    return operator


def alternated(
    sides: Mapping[str, Callable[[], object]], rounds: int, *, processor: bool = False
) -> dict[str, float]:
    """Median seconds of each side over `rounds` calls, after one call that does not count.

    Args:
        sides: what to time, by name.
        rounds: calls of each that count.
        processor: whether to count processor time, which other programs disturb least, instead of
            elapsed time; for one thread on a CPU.
    """
    timed: dict[str, list[float]] = {name: [] for name in sides}
    for count in range(rounds + 1):
        for name, run in sides.items():
            seconds = processed(run) if processor else clocked(run)
            if count:
                timed[name].append(seconds)
    return {name: statistics.median(values) for name, values in timed.items()}


def clocked(run: Callable[[], object]) -> float:
    """Seconds of one call, the GPU's work included."""
    _wait()
    start = time.perf_counter()
    run()
    _wait()
    return time.perf_counter() - start


def processed(run: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
