"""A clock that lets in what still fits, and remembers what did not and why."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from hessblocks.errors import ArgumentError

FIRST = 20.0
"""Seconds that a first item of a part may take, before one of its kind was measured."""


class Clock:
    """So many seconds from now on; its shares write into the same lists."""

    def __init__(self, seconds: float, of: Clock | None = None) -> None:
        self.total = seconds
        self.end = time.monotonic() + seconds
        self.left_out: dict[str, str] = {} if of is None else of.left_out
        self.failed: dict[str, str] = {} if of is None else of.failed

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def share(self, part: float) -> Clock:
        """A clock for one part: that share of the whole time, and no more than what is left."""
        return Clock(min(part * self.total, self.left), of=self)

    def item(self, what: str, run: Callable[[], Any], expected: float = FIRST) -> Any:
        """Do one item if it is expected to fit.

        Args:
            what: its name.
            run: the work.
            expected: seconds.

        Returns:
            What came of it; None where it was left out or failed.
        """
        if expected > self.left:
            return self._leave(what, f"no time ({expected:.0f} s expected, {self.left:.0f} s left)")
        try:
            return run()
        except (torch.OutOfMemoryError, ArgumentError) as error:  # a memory limit among them
            return self._leave(what, str(error).splitlines()[0])
        except Exception as error:  # the other items are worth their time
            self.failed[what] = f"{type(error).__name__}: {error}"
            print(f"{what}: failed: {self.failed[what]}", flush=True)
        finally:
            if torch.cuda.is_available():  # what is in circles gives its memory back
                gc.collect()
                torch.cuda.empty_cache()

    def _leave(self, what: str, why: str) -> None:
        self.left_out[what] = why
        print(f"{what}: left out: {why}", flush=True)
