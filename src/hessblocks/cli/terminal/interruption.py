"""Ctrl-C as one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hessblocks.errors import RunError


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, an interruption says that the command can go on.

    Raises:
        RunError: the user interrupted.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise RunError("interrupted; the same command goes on where it stopped.") from None
