"""Train in several processes (torchrun): the first decides and writes, the others train along.

The others wait for an order, carry it out together with the first, and wait again. So only the
first looks at the run folder, and all agree on what is trained from which checkpoint.

Each beats while they work, and ends with a sentence once another's heart stands still. A process
that works alone for long still beats, from a thread. One that is stopped or gone does not, and the
others would wait for it in a collective, where Python cannot interrupt them.
"""

import atexit
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hessblocks.errors import ArgumentError, RunError

T = TypeVar("T")
TURN = timedelta(days=7)
"""Longest wait for the first process, which may be measuring curvature; if it has failed or stands
still, the heartbeat ends the wait sooner."""
MEETING = timedelta(minutes=5)
"""Longest wait of processes for each other before they begin, when no heart beats yet."""
TORCHRUN = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables of torchrun."""
_USE_CPU = "ACCELERATE_USE_CPU"


def asked_for() -> int:
    """Count the processes that torchrun started; 1 without it.

    Returns:
        Their number, this one included.

    Raises:
        ArgumentError: the environment holds a part of what torchrun writes, as an earlier command
            leaves it, or asks accelerate for a training of another kind.
    """
    if asked := _asked_of_accelerate() - {_USE_CPU}:
        raise _another_training(min(asked))
    given = {name: os.environ[name] for name in TORCHRUN if os.environ.get(name)}
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        if not re.fullmatch(r"\s*[+-]?\d+\s*", given.get(name, "0")):
            raise ArgumentError(
                f"{name}={given[name]!r} in the environment is no whole number; unset it."
            )
    count = int(given.get("WORLD_SIZE", 1)) or 1
    lacking = [name for name in TORCHRUN if name not in given]
    if lacking and (count > 1 or int(given.get("LOCAL_RANK", -1)) >= 0):
        there = " and ".join(f"{name}={value}" for name, value in given.items())
        raise ArgumentError(
            f"{there} in the environment, without {', '.join(lacking)}: unset what is there, or "
            "start the command with torchrun."
        )
    return count


def _asked_of_accelerate() -> set[str]:
    """List what the environment asks accelerate for: FSDP, DeepSpeed, another device."""
    off = ("", "0", "false", "no", "off", "n", "f")
    named = (name for name in os.environ if name.startswith("ACCELERATE_USE_"))
    return {name for name in named if os.environ[name].lower() not in off}


def _another_training(name: str) -> ArgumentError:
    return ArgumentError(
        f"{name}={os.environ[name]} in the environment changes how models are trained; unset it "
        "(--device chooses the device)."
    )


def join(device: str) -> None:
    """Meet the other processes, where there are any: gloo on a cpu, NCCL on cuda.

    Raises:
        ArgumentError: the environment asks for another device.
        RunError: another has not come within `MEETING`.
    """
    if device != "cpu" and _USE_CPU in _asked_of_accelerate():
        raise _another_training(_USE_CPU)
    if (count := asked_for()) == 1 or dist.is_initialized():
        return
    from accelerate import PartialState

    backend = {"backend": "gloo"} if device == "cpu" else {}
    try:
        PartialState(cpu=device == "cpu", timeout=MEETING, **backend)
        _meet(count)
    except (RuntimeError, TimeoutError) as error:  # as torch's stores and backends say it
        reason = str(error).strip().partition("\n")[0][:200]
        message = (
            f"the {count} processes of this command have not met within {MEETING.seconds:,} s "
            f"({reason}); end those that are left and start all again."
        )
        # the first, which speaks else, may be the one that is missing
        if os.environ["RANK"] == "1":
            print(f"hessblocks: {message}", file=sys.stderr, flush=True)
        raise RunError(message) from error
    if device == "cpu":
        atexit.register(_leave)


def _meet(count: int) -> None:
    """Wait until all processes are here; later waits may take as long as the work of one."""
    groups: Any = dist.distributed_c10d
    store = groups._get_default_store()
    store.set(f"here {dist.get_rank()}", "")
    store.wait([f"here {rank}" for rank in range(count)], MEETING)
    groups._set_pg_timeout(TURN, dist.group.WORLD)


def _leave() -> None:
    """End gloo's threads before the interpreter ends: one that held a tensor would abort it."""
    if dist.is_initialized():
        dist.destroy_process_group()


def count() -> int:
    """Count the processes that have met."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Tell whether this process decides and writes."""
    return not dist.is_initialized() or dist.get_rank() == 0


def wait() -> None:
    """Wait until all processes are here (a barrier)."""
    if count() > 1:
        dist.barrier()


def any_of(flag: bool) -> bool:
    """Tell whether the flag is set in any process."""
    if count() == 1:
        return flag
    found = torch.tensor(float(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found)


def first_of(value: T | None) -> T | None:
    """Take the value of the first process that has one."""
    if count() == 1:
        return value
    values: list[T | None] = [None] * count()
    dist.all_gather_object(values, value)
    return next((found for found in values if found is not None), None)


EVERY = 5.0
"""Seconds between two beats."""
PATIENCE = 60.0
"""Seconds without a beat after which a process is lost."""
_LINK = re.compile(r"gloo|NCCL|Connection (reset|closed) by peer|Broken pipe")
"""Messages of torch about a process that no longer answers."""


class Heart:
    """Heartbeat: counts up in the store that all processes share, and watches the others.

    Time is counted in turns of the watching thread: where all processes were stopped together and
    go on, no one is lost. Silence counts from the start, also that of a process which has not
    beaten once.
    """

    def __init__(
        self, store: dist.Store, rank: int, count: int, *, every: float, patience: float
    ) -> None:
        """Start the heartbeat.

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
        self._end = Event()
        self._threads = [Thread(target=work, daemon=True) for work in (self._beat, self._watch)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the heartbeat, and stop watching others."""
        self._end.set()
        for thread in self._threads:
            thread.join(self.every)

    def lost(self, silent: list[int]) -> None:
        """End this process; the first one that is left says why.

        Args:
            silent: the processes that are lost.
        """
        if self.rank == min({*range(self.count)}.difference(silent)):
            names = ", ".join(map(str, silent))
            print(
                f"hessblocks: process {names} of {self.count} (counted from 0) has given no sign "
                f"of life for {self.patience:.0f} s; all end, and the same command goes on where "
                "it stopped.",
                file=sys.stderr,
                flush=True,
            )
        os._exit(1)

    def leave(self, words: str) -> None:
        """Tell the others why this process ends."""
        with suppress(RuntimeError):
            self.store.set("last words", f" (process {self.rank}: {words})")

    def last_words(self) -> str:
        """Read why another process ended, if it could say so."""
        with suppress(RuntimeError):
            if self.store.check(["last words"]):
                return self.store.get("last words").decode()
        return ""

    def _beat(self) -> None:
        while not self._end.wait(self.every):
            with suppress(RuntimeError):  # no store, no beats
                for rank in range(self.count):
                    self._beats[rank] = self.store.add(f"beats {rank}", int(rank == self.rank))

    def _watch(self) -> None:
        known: dict[int, int] = {}
        silence = dict.fromkeys(range(self.count), 0.0)
        while not self._end.wait(self.every):
            for rank in silence:
                silence[rank] += self.every
            for rank, beats in self._beats.copy().items():
                # the first count may be of an earlier meeting
                if beats != known.setdefault(rank, beats):
                    known[rank], silence[rank] = beats, 0.0
            silent = [rank for rank, seconds in silence.items() if seconds >= self.patience]
            if silent:  # who does not hear itself has lost the store, which the first process keeps
                self.lost([0] if self.rank in silent else silent)


@contextmanager
def beating() -> Iterator[None]:
    """Let the processes of the default group watch each other inside.

    Raises:
        RunError: another process has ended.
    """
    if count() == 1:
        yield
        return
    shared: Any = dist.distributed_c10d._get_default_store()
    heart = Heart(shared.clone(), dist.get_rank(), count(), every=EVERY, patience=PATIENCE)
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, RuntimeError) and _LINK.search(str(error)):
            raise RunError(
                f"another process has ended{heart.last_words()}; the same command goes on where it "
                "stopped."
            ) from error
        heart.leave(str(error).strip().partition("\n")[0] or type(error).__name__)
        raise
    finally:
        heart.stop()
