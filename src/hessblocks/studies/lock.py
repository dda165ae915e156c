"""A folder is written by one command at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from hessblocks.errors import RunError

NAME = ".lock"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process.

    The operating system takes the lock back when the process ends, however it ends; what a dead
    process left is taken over.

    Args:
        folder: made when missing.

    Raises:
        RunError: another live process holds it (the message says which), or it cannot be written.
    """
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunError(
            f"out: {folder} cannot be written ({error.strerror or error}); choose another folder."
        ) from error
    try:
        _take(descriptor, folder)
        _sign(descriptor, _holder())
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunError(
            f"out: {folder} is in use by {_read(descriptor)}; wait for it or choose another --out."
        ) from error


def _holder() -> str:
    return json.dumps(
        {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    )


def _sign(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _read(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
