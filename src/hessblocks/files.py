"""Files that are whole or absent: written to a temporary neighbour, then renamed."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hessblocks.errors import RunError


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path` by one rename.

    Args:
        path: the final file; its folder is made when missing.

    Yields:
        A path that does not exist yet, with the same suffix as `path`, in the same folder.

    Raises:
        RunError: the folder or the file cannot be written (no permission, full disk).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror}); choose another folder."
        ) from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror}); free some space or choose another folder."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


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
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")
