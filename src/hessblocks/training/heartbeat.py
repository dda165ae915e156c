"""Several processes (torchrun): each beats, and ends with a sentence once another's heart stands still.

A process that works alone for long still beats, from a thread; one that is stopped or gone does not, and the
others would wait for it in a collective, where Python cannot interrupt them.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from hessblocks.errors import RunError

EVERY = 5.0
"""Seconds between two beats."""
PATIENCE = 60.0
"""Seconds without a beat after which a process is lost."""
_LINK = re.compile(r"gloo|NCCL|Connection (reset|closed) by peer|Broken pipe")
"""How torch says that another process no longer answers."""


class Heart:
    """Counts up in the store that all processes share, and watches the counts of the others.

    Time is counted in turns of the watching thread: where all processes were stopped together and go on, no
    one is lost. Silence counts from the start, also that of a process which has not beaten once.
    """

    def __init__(
        self, store: dist.Store, rank: int, count: int, *, every: float, patience: float
    ) -> None:
        """Begin to beat.

        Args:
            store: a connection that nothing else uses.
            rank: number of this process.
            count: how many there are.
            every: seconds between two beats.
            patience: seconds without one after which a process is lost.
        """
        self.store, self.rank, self.count = store, rank, count
        self.every, self.patience = every, patience
        self._beats: dict[int, int] = {}
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._beat, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Beat no more, and watch no more."""
        self._end.set()
        for thread in self._threads:
            thread.join(self.every)

    def lost(self, silent: list[int]) -> None:
        """End this process; the first that is left says why.

        Args:
            silent: the processes that are lost.
        """
        if self.rank == min({*range(self.count)}.difference(silent)):
            names = ", ".join(map(str, silent))
            print(
                f"hessblocks: process {names} of {self.count} (counted from 0) has given no sign of life for "
                f"{self.patience:.0f} s; all end, and the same command goes on where it stopped.",
                file=sys.stderr,
                flush=True,
            )
        os._exit(1)

    def leave(self, words: str) -> None:
        """Tell the others why this process ends."""
        with contextlib.suppress(RuntimeError):
            self.store.set("last words", f" (process {self.rank}: {words})")

    def last_words(self) -> str:
        """Why another process ended, where it could say so."""
        with contextlib.suppress(RuntimeError):
            if self.store.check(["last words"]):
                return self.store.get("last words").decode()
        return ""

    def _beat(self) -> None:
        while not self._end.wait(self.every):
            with contextlib.suppress(RuntimeError):  # no store, no beats
                for rank in range(self.count):
                    self._beats[rank] = self.store.add(f"beats {rank}", int(rank == self.rank))

    def _watch(self) -> None:
        known: dict[int, int] = {}
        silence = dict.fromkeys(range(self.count), 0.0)
        while not self._end.wait(self.every):
            for rank in silence:
                silence[rank] += self.every
            for rank, beats in self._beats.copy().items():
                if beats != known.setdefault(
                    rank, beats
                ):  # the first count may be of an earlier meeting
                    known[rank], silence[rank] = beats, 0.0
            silent = [rank for rank, seconds in silence.items() if seconds >= self.patience]
            if silent:  # who does not hear itself has lost the store, which the first process keeps
                self.lost([0] if self.rank in silent else silent)


@contextlib.contextmanager
def beating() -> Iterator[None]:
    """Inside, the processes of the default group look after each other.

    Raises:
        RunError: another process has ended.
    """
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        yield
        return
    shared: Any = dist.distributed_c10d._get_default_store()
    heart = Heart(
        shared.clone(), dist.get_rank(), dist.get_world_size(), every=EVERY, patience=PATIENCE
    )
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, RuntimeError) and _LINK.search(str(error)):
            raise RunError(
                f"another process has ended{heart.last_words()}; the same command goes on where it stopped."
            ) from error
        heart.leave(str(error).strip().partition("\n")[0] or type(error).__name__)
        raise
    finally:
        heart.stop()
