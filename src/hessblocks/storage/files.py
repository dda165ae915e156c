"""Write files and folders whole: to a temporary neighbour, then renamed."""

import contextlib
import glob
import itertools
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError

LONGEST_NAME = 200
"""Bytes of a name at most, so that its temporary neighbour fits on every disk."""

DEEPEST = 100
"""Lists and objects inside each other at most; Python's own recursion ends soon after 1,000."""
LONGEST_INTEGER = 100
"""Digits of a whole number at most; a float holds 309, and Python parses 4,300."""


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path` by one rename.

    Args:
        path: the final file; its folder is made when missing.

    Yields:
        The path of an empty file with the same suffix as `path`, in the same folder.

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
    """Yield a temporary folder beside `path`; on success it becomes `path` by renaming.

    What stood at `path` before is replaced.

    Args:
        path: the final folder; its parent is made when missing.

    Yields:
        An empty folder in the same parent.

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
    """Tell whether a path that a file names, joined to a folder, stays in that folder.

    Returns:
        False for what is no text, leads elsewhere, or is no name that a disk takes.
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
    """Wait until a file, or the names in a folder, are on the disk.

    A folder of a system that cannot do that (Windows) is left alone.
    """
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_partials(folder: Path, name: str | None = None) -> None:
    """Remove what a killed process left of its temporary files and folders.

    Args:
        folder: where they lie; only one process may write there.
        name: stem of the final file or name of the final folder; None means any, there and in the
            sub-folder `figures`.
    """
    stem = glob.escape(name) if name else "*"
    for place in (folder,) if name else (folder, folder / "figures"):
        for left in place.glob(f".{stem}.partial-*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def set_aside(path: Path, folder: Path) -> Path:
    """Move a file or folder that is not as it was written into `folder`/aside.

    Returns:
        Where it is now.

    Raises:
        RunError: it cannot be moved.
    """
    place, count = folder / "aside" / path.name, 1
    while place.exists():
        count += 1
        place = place.with_name(f"{path.name}-{count}")
    with _writing(place):
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
    return place


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


def json_text(value: Any) -> str:
    """Format `value` as `write_json` writes it."""
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def append(path: Path, content: bytes, *, force: bool = False) -> None:
    """Add lines to the end of a file, all of them or none.

    Args:
        path: the file.
        content: whole lines.
        force: whether to wait until they are on the disk.

    Raises:
        RunError: the file cannot be written; it is then as it was.
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
    """Yield each line that is not blank, with its number from 1; none where there is no file.

    A line that a killed process left has no line end.

    Raises:
        RunError: the file cannot be read.
    """
    text = read_bytes(path) if path.exists() else b""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if line.strip():
            yield number, line


def damaged(path: Path, line: int | None, reason: str) -> RunError:
    """Make the error for a file that cannot be understood, to be raised by the caller.

    Args:
        path: the file.
        line: its damaged line, counted from 1; None for the file as a whole.
        reason: what was expected and what came.

    Returns:
        An error that names the file, the line and what to do.
    """
    where = f"{path}, line {line}" if line is not None else f"{path}"
    return RunError(f"{where}: {reason}; mend or remove it, or run the command again.")


def read_bytes(path: Path) -> bytes:
    """Read the bytes of a file.

    Returns:
        All bytes.

    Raises:
        RunError: it cannot be read.
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
        RunError: it cannot be read, or is something else.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: cannot be read (not UTF-8 text); check the file.") from error


def parse_json(text: str) -> Any:
    """Parse JSON, within bounds far above those of our own files.

    Args:
        text: text of a file, or of one of its lines.

    Returns:
        Its value.

    Raises:
        json.JSONDecodeError: it is no JSON, is nested too deeply, or has a whole number that is too
            long.
    """

    def integer(digits: str) -> int:
        if len(digits) > LONGEST_INTEGER:
            long = f"a whole number of {len(digits):,} digits"
            raise json.JSONDecodeError(long, text, text.find(digits))
        return int(digits)

    try:
        value = json.loads(text, parse_int=integer)
        deep = not _is_shallow(value)
    except RecursionError:
        deep = True
    if deep:
        raise json.JSONDecodeError(f"nested more than {DEEPEST} deep", text, 0)
    return value


def _is_shallow(value: Any) -> bool:
    """Tell whether nothing is nested deeper than `DEEPEST`; level by level, without recursion."""
    level: list[Any] = [[value]]
    for _ in range(DEEPEST + 1):
        entries = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for one in itertools.chain(*entries) if isinstance(one, dict | list)]
        if not level:
            return True
    return False


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object that a file holds.

    Returns:
        Names and values, as JSON has them.

    Raises:
        RunError: the file cannot be read or is not one JSON object.
    """
    try:
        value = parse_json(read_text(path))
    except json.JSONDecodeError as error:
        raise damaged(path, error.lineno, f"not JSON ({error.msg})") from error
    if not isinstance(value, dict):
        raise damaged(path, None, f"expected one JSON object, got {type(value).__name__}")
    return value


def refuse_links(folder: Path) -> None:
    """Refuse a run folder that holds anything but plain files and folders.

    Args:
        folder: may be a link itself, which is the user's choice; need not be there.

    Raises:
        ArgumentError: names what is a link, a pipe or a device.

    Cost:
        A look at each entry below the folder; links are not followed.
    """
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):  # another process's temporary file
                mode = path.lstat().st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    what = "a link" if stat.S_ISLNK(mode) else "no plain file"
                    raise ArgumentError(
                        f"{path} is {what}; a run folder holds files of its own alone: put a copy "
                        "there or choose another folder."
                    )


def _partial(path: Path) -> Path:
    """Make a temporary name beside `path` that is new, with its suffix."""
    return path.with_name(f".{path.stem}.partial-{secrets.token_hex(4)}{path.suffix}")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror or error}); "
            "free some space or choose another folder."
        ) from error
