"""Guard folders: a lock for a single writer, and a manifest (`seal.json`) with each file's SHA-256.

The manifest of a model or checkpoint is written after all other files, so that a folder with a
manifest is complete.
"""

import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.files import read_object, refuse_links, remove_partials, sync, write_json

MANIFEST = "seal.json"
CARD = "README.md"
"""Model card; users may edit it, so no manifest contains it."""
FORMAT = 1
"""Version of a run's files, a part of its identity. Raise it when an equal configuration gives
other files than before."""


class DamageWarning(UserWarning):
    """Warning of files that were changed or lost after they were written."""


def identity_of(config: Mapping[str, Any]) -> str:
    """Compute the identity of a run: a digest of its configuration.

    Args:
        config: all settings as JSON values; their order does not count.

    Returns:
        The first 16 hexadecimal digits of a SHA-256.
    """
    text = json.dumps([FORMAT, config], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity_in(folder: Path) -> str:
    """Compute the identity of the run in a folder, from its config.json.

    Args:
        folder: folder of the run.

    Returns:
        The identity, as `identity_of` computes it.

    Raises:
        RunError: config.json is absent or damaged.
    """
    return identity_of(read_object(folder / "config.json"))


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, run: str, name: str, progress: dict[str, Any]) -> None:
    """Write the manifest of a folder, once all its files are on the disk.

    Args:
        folder: model or checkpoint, with all other files written.
        run: identity of the run.
        name: name that the folder has, or will have.
        progress: JSON values to store in the manifest, which `remembered_in` reads.

    Raises:
        RunError: the manifest cannot be written.
    """
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name not in (MANIFEST, CARD):
            sync(path)
            files[path.name] = sha256(path)
    write_json(folder / MANIFEST, {"of": run, "name": name, "files": files, "progress": progress})
    sync(folder.parent)


def remembered_in(folder: Path) -> dict[str, Any]:
    """Read the values that `write_manifest` stored as `progress`.

    Args:
        folder: model or checkpoint.

    Returns:
        JSON values; none if the manifest is absent or damaged.
    """
    try:
        progress: dict[str, Any] = dict(read_object(folder / MANIFEST)["progress"])
    except (RunError, KeyError, TypeError, ValueError):
        return {}
    numbers = (progress.get(name, 0) for name in ("step", "seconds", "peak_memory"))
    sound = all(isinstance(number, int | float) for number in numbers)
    return progress if sound and isinstance(progress.get("lines", {}), dict) else {}


def check_manifest(folder: Path, run: str | None = None, name: str | None = None) -> str:
    """Check a checkpoint or a saved model against its manifest.

    Args:
        folder: model or checkpoint.
        run: identity of the run that should have written it; None: any.
        name: name that the folder should have been written under; None: any.

    Returns:
        The fault, as the end of a sentence that begins with the folder. It is empty if all files
        but the card are as they were written, and no files but hidden ones were added. A manifest
        of an early version names neither run nor folder and passes for any.

    Cost:
        SHA-256 of all files, about a second per gigabyte.
    """
    if not (folder / MANIFEST).exists():
        other = "is a file" if folder.is_file() else "is absent"
        return f"has no {MANIFEST}" if folder.is_dir() else other
    try:
        manifest = read_object(folder / MANIFEST)
        files: dict[str, str] = dict(manifest["files"])
        files.pop(CARD, None)
        present = {path.name for path in folder.iterdir()} - {MANIFEST, CARD}
        for file, digest in files.items():
            if file not in present:
                return f"lacks its {file}"
            if sha256(folder / file) != digest:
                return f"has another {file} than was written"
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return f"has a damaged {MANIFEST}"
    if added := sorted(file for file in present - set(files) if not file.startswith(".")):
        return f"holds {added[0]}, which is not one of its files"
    if run not in (None, manifest.get("of", run)):
        return "is of another run"
    if name not in (None, manifest.get("name", name)):
        return f"was {manifest['name']} when it was written"
    return ""


def check_in_place(folder: Path) -> str:
    """Check a folder against its manifest, and a model against the run folder that it stands in.

    Args:
        folder: model or checkpoint.

    Returns:
        The fault, as `check_manifest` returns it.

    Raises:
        RunError: config.json of the run is damaged.
    """
    run = folder.absolute().parent
    in_run = folder.absolute().name == "model" and (run / "config.json").is_file()
    return check_manifest(folder, identity_in(run) if in_run else None)


def remedy(fault: str, run: Path) -> str:
    """Advise what to do about the model of a trained run that is not as it was written.

    Args:
        fault: fault of the model.
        run: folder of the run.

    Returns:
        Advice that completes an error message, without a full stop.
    """
    if fault.startswith("holds"):
        return "take it out and run again"
    return f"remove {run} and run again to train once more"


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
