"""Write files and folders atomically: to a temporary path in the same folder, then renamed."""

import contextlib
import glob
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError

LONGEST_NAME = 200
"""Most bytes of a file name, so that its temporary name is allowed on every disk."""

DEEPEST = 100
"""Deepest nesting of JSON lists and objects; Python's recursion limit is about 1,000."""
LONGEST_INTEGER = 100
"""Most digits of a whole number in JSON; a float holds 309, and Python parses up to 4,300."""


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, and rename it to `path` on success.

    Args:
        path: final file; its folder is created if it is missing.

    Yields:
        Path of an empty file with the suffix of `path`, in the same folder.

    Raises:
        RunError: the folder or the file cannot be written (no permission, full disk).
    """
    temporary = _partial(path)
    try:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch(exist_ok=False)
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, and rename it to `path` on success.

    An earlier file or folder at `path` is replaced.

    Args:
        path: final folder; its parent is created if it is missing.

    Yields:
        Path of an empty folder in the same parent.

    Raises:
        RunError: the folder cannot be written (no permission, full disk).
    """
    temporary, replaced = _partial(path), _partial(path)
    try:
        with _writing(path):
            temporary.mkdir(parents=True)
            yield temporary
            for written in (*temporary.rglob("*"), temporary):
                sync(written)
            if path.exists():
                path.rename(replaced)
            temporary.rename(path)
            sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def stays_inside(name: object) -> bool:
    """Tell whether a relative path from a file, joined to a folder, stays inside the folder.

    Returns:
        False if `name` is not a text, leads outside, or is not a valid file name.
    """
    if not isinstance(name, str) or "\0" in name:
        return False
    path = Path(name)
    try:
        long = any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts)
    except UnicodeEncodeError:
        return False
    return not (long or path.anchor or ".." in path.parts)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk (fsync).

    Windows cannot sync a folder; there the call does nothing.
    """
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_partials(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders that a killed process left.

    Args:
        folder: folder that contains them; only one process may write there.
        name: stem of the final file or name of the final folder; None: all, also those in the
            sub-folder `figures`.
    """
    stem = glob.escape(name) if name else "*"
    for parent in (folder,) if name else (folder, folder / "figures"):
        for left in parent.glob(f".{stem}.partial-*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def set_aside(path: Path, folder: Path) -> Path:
    """Move a damaged file or folder into `folder`/aside.

    Returns:
        Its new path.

    Raises:
        RunError: it cannot be moved.
    """
    target, count = folder / "aside" / path.name, 1
    while target.exists():
        count += 1
        target = target.with_name(f"{path.name}-{count}")
    with _writing(target):
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    return target


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all.

    Raises:
        RunError: the file cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, whole or not at all.

    Raises:
        RunError: the file cannot be written.
    """
    write_text(path, json_text(value))


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, since JSON has no word for them."""
    if isinstance(value, Mapping):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(value: Any) -> str:
    """Format `value` as JSON text, as `write_json` writes it."""
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def append(path: Path, content: bytes, *, force: bool = False) -> None:
    """Append lines to a file, all or none.

    Args:
        path: path of the file.
        content: whole lines.
        force: whether to wait until the lines are on the disk.

    Raises:
        RunError: the file cannot be written; its content is then unchanged.
    """
    with _writing(path), path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            while content:
                content = content[os.write(file.fileno(), content) :]
            if force:
                os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


def numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) for each line that is not blank; nothing if there is no file.

    A last line that a killed process wrote in part has no line end.

    Raises:
        RunError: the file cannot be read.
    """
    text = read_bytes(path) if path.exists() else b""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if line.strip():
            yield number, line


def damaged(path: Path, line: int | None, reason: str) -> RunError:
    """Make the error for a damaged file, to be raised by the caller.

    Args:
        path: path of the file.
        line: number of the damaged line, from 1; None: the whole file.
        reason: expected and found content.

    Returns:
        An error whose message has the file, the line and the remedy.
    """
    where = f"{path}, line {line}" if line is not None else f"{path}"
    return RunError(f"{where}: {reason}; mend or remove it, or run the command again.")


def read_bytes(path: Path) -> bytes:
    """Read the bytes of a file.

    Returns:
        All bytes.

    Raises:
        RunError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"{path}: cannot be read ({reason}); check the file.") from error


def read_text(path: Path) -> str:
    """Read a file of UTF-8 text.

    Returns:
        The whole text.

    Raises:
        RunError: the file cannot be read, or is not UTF-8.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: cannot be read (not UTF-8 text); check the file.") from error


def parse_json(text: str) -> Any:
    """Parse JSON with limits on nesting and digits, far above what our own files need.

    Args:
        text: text of a file, or of one of its lines.

    Returns:
        The parsed value.

    Raises:
        json.JSONDecodeError: the text is not JSON, is nested too deeply, or has a whole number with
            too many digits.
    """

    def integer(digits: str) -> int:
        if len(digits) > LONGEST_INTEGER:
            long = f"a whole number of {len(digits):,} digits"
            raise json.JSONDecodeError(long, text, text.find(digits))
        return int(digits)

    try:
        value = json.loads(text, parse_int=integer)
        deep = _depth(value) > DEEPEST
    except RecursionError:
        deep = True
    if deep:
        raise json.JSONDecodeError(f"nested more than {DEEPEST} deep", text, 0)
    return value


def _depth(value: Any) -> int:
    """Count the levels of lists and objects."""
    entries = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, entries), default=0) if isinstance(value, dict | list) else 0


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that contains one JSON object.

    Returns:
        Name → JSON value.

    Raises:
        RunError: the file cannot be read, or is not one JSON object.
    """
    try:
        value = parse_json(read_text(path))
    except json.JSONDecodeError as error:
        raise damaged(path, error.lineno, f"not JSON ({error.msg})") from error
    if not isinstance(value, dict):
        raise damaged(path, None, f"expected one JSON object, got {type(value).__name__}")
    return value


def refuse_links(folder: Path) -> None:
    """Refuse a run folder that contains anything other than plain files and folders.

    Args:
        folder: run folder. It may itself be a link, by the user's choice; it need not exist.

    Raises:
        ArgumentError: the folder contains a link, a pipe or a device.

    Cost:
        One `lstat` per entry below the folder; links are not followed.
    """
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):  # another process's temporary file
                mode = path.lstat().st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    kind = "a link" if stat.S_ISLNK(mode) else "not a plain file"
                    raise ArgumentError(
                        f"{path} is {kind}; a run folder holds files of its own alone: put a copy "
                        "there or choose another folder."
                    )


def _partial(path: Path) -> Path:
    """Make a new temporary path in the folder of `path`, with its suffix."""
    return path.with_name(f".{path.stem}.partial-{secrets.token_hex(4)}{path.suffix}")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # libraries in Rust have no class for a full disk
        if not isinstance(error, OSError) and "(os error" not in str(error):
            raise
        raise RunError(
            f"{path}: cannot be written ({getattr(error, 'strerror', None) or error}); "
            "free some space or choose another folder."
        ) from error
