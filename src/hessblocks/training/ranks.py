"""Several processes (torchrun): the first decides and writes, the others train along.

The others wait for an order, carry it out together with the first, and wait again. So only the first
looks at the run folder, and all agree on what is trained from which checkpoint.
"""

from __future__ import annotations

import atexit
import os
import sys
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hessblocks.errors import ArgumentError, RunError

T = TypeVar("T")
PATIENCE = timedelta(days=7)
"""How long a process waits for the first, which may be measuring curvature; where that has failed or stands
still, the heartbeat ends it sooner."""
MEETING = timedelta(minutes=5)
"""How long processes wait for each other before they begin, when no heart beats yet."""
TORCHRUN = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells its processes in the environment."""
_USE_CPU = "ACCELERATE_USE_CPU"


def asked_for() -> int:
    """How many processes torchrun started; 1 without it.

    Returns:
        Their number, this one included.

    Raises:
        ArgumentError: the environment holds a part of what torchrun writes, as an earlier command leaves it, or
            asks accelerate for a training of another kind.
    """
    if asked := _asked_of_accelerate() - {_USE_CPU}:
        raise _another_training(min(asked))
    numbers = {name: _whole(name) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    count, local = numbers["WORLD_SIZE"], numbers["LOCAL_RANK"]
    lacking = [name for name in TORCHRUN if not os.environ.get(name)]
    if lacking and ((count or 1) > 1 or (local is not None and local >= 0)):
        there = " and ".join(f"{n}={os.environ[n]}" for n in TORCHRUN if os.environ.get(n))
        raise ArgumentError(
            f"{there} in the environment, without {', '.join(lacking)}: unset what is there, or start the command "
            "with torchrun."
        )
    return count or 1


def _whole(name: str) -> int | None:
    """A number in the environment; None where it is not set."""
    if not (text := os.environ.get(name)):
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ArgumentError(
            f"{name}={text!r} in the environment is no whole number; unset it."
        ) from error


def _asked_of_accelerate() -> set[str]:
    """What the environment asks accelerate for: FSDP, DeepSpeed, another device."""
    off = ("", "0", "false", "no", "off", "n", "f")
    named = (name for name in os.environ if name.startswith("ACCELERATE_USE_"))
    return {name for name in named if os.environ[name].lower() not in off}


def _another_training(name: str) -> ArgumentError:
    return ArgumentError(
        f"{name}={os.environ[name]} in the environment changes how models are trained; unset it (--device chooses "
        "the device)."
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
            f"the {count} processes of this command have not met within {MEETING.seconds:,} s ({reason}); end those "
            "that are left and start all again."
        )
        if (
            os.environ["RANK"] == "1"
        ):  # the first, which speaks else, may be the one that is missing
            print(f"hessblocks: {message}", file=sys.stderr, flush=True)
        raise RunError(message) from error
    if device == "cpu":
        atexit.register(_leave)


def _meet(count: int) -> None:
    """Wait until all are here, and from then on as long as the work of one may take."""
    groups: Any = dist.distributed_c10d
    store = groups._get_default_store()
    store.set(f"here {dist.get_rank()}", "")
    store.wait([f"here {rank}" for rank in range(count)], MEETING)
    groups._set_pg_timeout(PATIENCE, dist.group.WORLD)


def _leave() -> None:
    """Let gloo's threads end before the interpreter does: one that still held a tensor of the last collective would abort it."""
    if dist.is_initialized():
        dist.destroy_process_group()


def count() -> int:
    """How many processes have met."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this process decides and writes."""
    return not dist.is_initialized() or dist.get_rank() == 0


def wait() -> None:
    """Go on when all processes are here."""
    if count() > 1:
        dist.barrier()


def any_of(flag: bool) -> bool:
    """Whether the flag is set in any process."""
    if count() == 1:
        return flag
    found = torch.tensor(float(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found)


def first_of(value: T | None) -> T | None:
    """The value of the first process that has one."""
    if count() == 1:
        return value
    values: list[T | None] = [None] * count()
    dist.all_gather_object(values, value)
    return next((found for found in values if found is not None), None)
