"""Lock a folder, so that only one command at a time writes to it."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.files import refuse_links, remove_partials
from hessblocks.storage.manifest import MANIFEST

LOCK = ".hessblocks.lock"
HOLDER = ".hessblocks.holder"
"""File that names the process with the lock, for the error message of other processes."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process, and remove temporary files of killed processes.

    The lock ends with the process, also if the process is killed.

    Args:
        folder: folder to lock; it is created if it is missing.

    Raises:
        ArgumentError: the folder is a saved model or checkpoint, or contains a link.
        RunError: another live process has the lock (the message names it), or the folder cannot be
            written.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        _take(lock, folder)
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):
                (folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def _take(lock: FileLock, folder: Path) -> None:
    try:
        if (folder / MANIFEST).is_file():
            raise ArgumentError(
                f"--out: {folder} is a saved model or a checkpoint, into which nothing else is "
                "written; choose another folder."
            )
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        lock.acquire()
        remove_partials(folder)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        me = f"process {os.getpid()} on {socket.gethostname()} since {now}"
        (folder / HOLDER).write_text(me, encoding="utf-8")
    except Timeout as error:
        raise RunError(
            f"--out: {folder} is in use by {_holder(folder)}; wait for it or choose another folder."
        ) from error
    except OSError as error:
        raise RunError(
            f"--out: {folder} cannot be written ({error.strerror or error}); choose another folder."
        ) from error


def _holder(folder: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return (folder / HOLDER).read_text(encoding="utf-8") or "another process"
    return "another process"
