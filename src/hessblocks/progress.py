"""Progress of a long computation: stages with their time, steps, and notes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Measure stages and say nothing; a subclass shows them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        """Add the time spent inside to the stage of that name.

        Args:
            name: name of the stage, such as "training".
            detail: which of several, such as "sas, seed 0".
            total: steps to come, if they are counted.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def note(self, text: str) -> None:
        """Show a line about the next work."""

    def step(self, done: int, loss: float | None) -> None:
        """Count steps of the stage, and show the last training loss where it is known."""
