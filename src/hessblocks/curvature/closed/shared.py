"""Share one process-wide setting among threads, counted by those that need it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class Shared(AbstractContextManager[None]):
    """Process-wide setting that the first thread makes and the last one undoes."""

    def __init__(self, setting: Callable[[], AbstractContextManager[Any]]) -> None:
        """Hold what makes the setting."""
        self._setting, self._lock, self._inside = setting, threading.Lock(), 0
        self._made: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        """Make the setting, if nobody has."""
        with self._lock:
            if not self._inside:
                self._made = self._setting()
                self._made.__enter__()
            # counted, since threads leave in another order than they came
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        """Undo it, if nobody needs it any longer."""
        with self._lock:
            self._inside -= 1
            if not self._inside and self._made is not None:
                self._made.__exit__(None, None, None)
