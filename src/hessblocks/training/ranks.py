"""Train in several processes (torchrun): rank 0 decides and writes, the others train with it.

The other processes wait for a task, carry it out together with rank 0, and wait again. So only rank
0 reads the run folder, and all train the same model from the same checkpoint.

Each process sends a heartbeat from a thread, also while it works alone for long. If a process is
stopped or killed, its heartbeat ends, and the others end with an error message. Otherwise they
would wait for it in a collective operation, which Python cannot interrupt.
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
"""Longest wait for the first process, which may measure curvature meanwhile; if it fails or stops,
the heartbeat ends the wait sooner."""
MEETING = timedelta(minutes=5)
"""Longest wait of processes for each other at the start, before heartbeats begin."""
TORCHRUN = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables of torchrun."""
_USE_CPU = "ACCELERATE_USE_CPU"


def asked_for() -> int:
    """Count the processes that torchrun started; 1 without it.

    Returns:
        Number of processes, with this one.

    Raises:
        ArgumentError: the environment has only some of torchrun's variables, perhaps left by an
            earlier command, or asks accelerate for another kind of training.
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
    """List the variables that ask accelerate for FSDP, DeepSpeed or another device."""
    off = ("", "0", "false", "no", "off", "n", "f")
    named = (name for name in os.environ if name.startswith("ACCELERATE_USE_"))
    return {name for name in named if os.environ[name].lower() not in off}


def _another_training(name: str) -> ArgumentError:
    return ArgumentError(
        f"{name}={os.environ[name]} in the environment changes how models are trained; unset it "
        "(--device chooses the device)."
    )


def join(device: str) -> None:
    """Initialise the process group, if there are several processes: gloo on CPU, NCCL on CUDA.

    Raises:
        ArgumentError: the environment asks for another device.
        RunError: another process has not started within `MEETING`.
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
    except (RuntimeError, TimeoutError) as error:  # of torch's stores and backends
        reason = str(error).strip().partition("\n")[0][:200]
        message = (
            f"the {count} processes of this command have not met within {MEETING.seconds:,} s "
            f"({reason}); end those that are left and start all again."
        )
        # rank 1 prints here: rank 0, which usually prints, may be the missing process
        if os.environ["RANK"] == "1":
            print(f"hessblocks: {message}", file=sys.stderr, flush=True)
        raise RunError(message) from error
    if device == "cpu":
        atexit.register(_leave)


def _meet(count: int) -> None:
    """Wait until all processes have started, then raise the timeout of later waits to `TURN`."""
    groups: Any = dist.distributed_c10d
    store = groups._get_default_store()
    store.set(f"here {dist.get_rank()}", "")
    store.wait([f"here {rank}" for rank in range(count)], MEETING)
    groups._set_pg_timeout(TURN, dist.group.WORLD)


def _leave() -> None:
    """End gloo's threads before the interpreter ends; a thread with a tensor would abort it."""
    if dist.is_initialized():
        dist.destroy_process_group()


def count() -> int:
    """Count the processes of the process group; 1 without one."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Tell whether this process is rank 0, which decides and writes."""
    return not dist.is_initialized() or dist.get_rank() == 0


def wait() -> None:
    """Wait until all processes arrive here (a barrier)."""
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
    """Return the value of the lowest rank whose value is not None."""
    if count() == 1:
        return value
    values: list[T | None] = [None] * count()
    dist.all_gather_object(values, value)
    return next((found for found in values if found is not None), None)


EVERY = 5.0
"""Seconds between two heartbeats."""
PATIENCE = 60.0
"""Seconds without a heartbeat after which a process counts as lost."""
_LINK = re.compile(r"gloo|NCCL|Connection (reset|closed) by peer|Broken pipe")
"""Messages of torch about a process that no longer answers."""


class Heart:
    """Heartbeat: increments a counter in the shared store, and watches the other counters.

    Time is counted in iterations of the watching thread: if all processes are paused and resumed
    together, none counts as lost. Silence is counted from the start, also for a process that has
    not sent any heartbeat.
    """

    def __init__(
        self, store: dist.Store, rank: int, count: int, *, every: float, patience: float
    ) -> None:
        """Start the heartbeat.

        Args:
            store: connection to the store that nothing else uses.
            rank: rank of this process.
            count: number of processes.
            every: seconds between two heartbeats.
            patience: seconds without a heartbeat after which a process counts as lost.
        """
        self.store, self.rank, self.count = store, rank, count
        self.every, self.patience = every, patience
        self._beats: dict[int, int] = {}
        self._end = Event()
        self._threads = [Thread(target=work, daemon=True) for work in (self._beat, self._watch)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending heartbeats and watching the others."""
        self._end.set()
        for thread in self._threads:
            thread.join(self.every)

    def lost(self, silent: list[int]) -> None:
        """End this process; the lowest rank that is left prints the reason.

        Args:
            silent: ranks of the lost processes.
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
        """Store the reason why this process ends, for the others."""
        with suppress(RuntimeError):
            self.store.set("last words", f" (process {self.rank}: {words})")

    def last_words(self) -> str:
        """Read why another process ended; empty if it left no reason."""
        with suppress(RuntimeError):
            if self.store.check(["last words"]):
                return self.store.get("last words").decode()
        return ""

    def _beat(self) -> None:
        while not self._end.wait(self.every):
            with suppress(RuntimeError):  # without the store there are no heartbeats
                for rank in range(self.count):
                    self._beats[rank] = self.store.add(f"beats {rank}", int(rank == self.rank))

    def _watch(self) -> None:
        known: dict[int, int] = {}
        silence = dict.fromkeys(range(self.count), 0.0)
        while not self._end.wait(self.every):
            for rank in silence:
                silence[rank] += self.every
            for rank, beats in self._beats.copy().items():
                # the first count that is read may come from an earlier process group
                if beats != known.setdefault(rank, beats):
                    known[rank], silence[rank] = beats, 0.0
            silent = [rank for rank, seconds in silence.items() if seconds >= self.patience]
            if silent:  # without its own beats, this process has lost the store of rank 0
                self.lost([0] if self.rank in silent else silent)


@contextmanager
def beating() -> Iterator[None]:
    """Let the processes of the default group watch each other's heartbeats inside.

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
