"""Several processes (torchrun): the first decides and writes, the others train along.

The others wait for an order, carry it out together with the first, and wait again. So only the first
looks at the run folder, and all agree on what is trained from which checkpoint.
"""

from __future__ import annotations

import atexit
import os
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
PATIENCE = timedelta(days=7)
"""How long a process waits for the first, which may be measuring curvature; where that has failed or stands
still, the heartbeat ends it sooner."""


def asked_for() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join(device: str) -> None:
    """Meet the other processes, where there are any: gloo on a cpu, NCCL on cuda."""
    if asked_for() > 1 and not dist.is_initialized():
        from accelerate import PartialState

        backend = {"backend": "gloo"} if device == "cpu" else {}
        PartialState(cpu=device == "cpu", timeout=PATIENCE, **backend)
        if device == "cpu":
            atexit.register(_leave)


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
