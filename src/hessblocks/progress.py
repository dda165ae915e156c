"""What is going on: stages with their time, steps, and notes. This one keeps time and says nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Measures stages; a subclass shows them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        """Time spent inside is added to the stage of that name.

        Args:
            name: of the stage, such as "training".
            detail: which of several, such as "sas, seed 0".
            total: steps to come, if they are counted.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def note(self, text: str) -> None:
        """A line about what is to come."""

    def step(self, done: int, loss: float | None) -> None:
        """So many steps of the stage are done; the last known training loss."""
