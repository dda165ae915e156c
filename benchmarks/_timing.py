"""Seconds of several sides that take turns in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def alternated(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each side over `rounds` calls, after one call that does not count."""
    timed: dict[str, list[float]] = {name: [] for name in sides}
    for count in range(rounds + 1):
        for name, run in sides.items():
            seconds = clocked(run)
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


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
