"""Report the progress of a long computation: stages with their times, steps, and notes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from hessblocks.errors import duration
from hessblocks.malloc import return_freed_memory

PAGE = 4.0
"""Processor seconds of a page with its pictures, measured: 1.0 to 5.4."""


class Progress:
    """Progress that measures the time of stages and shows nothing; a subclass shows it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.begun = time.process_time()

    def in_all(self, seconds: float) -> str:
        """Say the time of the whole command, if so many seconds and its page are to come."""
        seconds += time.process_time() - self.begun + PAGE
        return f"in all, start and page included, about {duration(seconds)}"

    @contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        """Add the seconds spent inside the context to a stage; then return freed memory.

        Args:
            name: name of the stage, such as "training".
            detail: part of the stage, such as "sas, seed 0".
            total: number of steps of the stage, if they are counted.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            return_freed_memory()

    def note(self, text: str) -> None:
        """Show one line of text."""

    def step(self, done: int, loss: float | None) -> None:
        """Show the number of steps done in the stage, and the last training loss if it is known."""
