"""Load what hessblocks-studies registers as entry points.

The group `hessblocks.commands` holds commands, each a function as in `cli/commands`. The group
`hessblocks.folders` holds kinds of folders, each a `FolderKind`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from hessblocks.errors import RunError

COMMANDS, FOLDERS = "hessblocks.commands", "hessblocks.folders"
STUDIES = "hessblocks-studies"
"""Distribution with the command `reproduce`."""


@dataclass(frozen=True, kw_only=True)
class FolderKind:
    """Functions of `hessblocks report` for the folders that one command writes."""

    holds: Callable[[Path], bool]
    """Tells whether a folder is of this kind."""
    write_page: Callable[[Path], tuple[Path, list[str]]]
    """Writes the page of a folder; returns its path and one line for each missing part."""


def load_all(group: str) -> dict[str, Any]:
    """Load the entry points of a group.

    Returns:
        Name → command or kind of folder.

    Raises:
        RunError: one cannot be loaded.
    """
    try:
        return {entry.name: entry.load() for entry in _entries(group)}
    except (ImportError, AttributeError) as error:
        raise RunError(
            f"{STUDIES} cannot be loaded ({error}); install that of this hessblocks, or "
            f"run pip uninstall {STUDIES}."
        ) from error


def lacking_for(command: str) -> str:
    """Write what to install for `reproduce`; empty if it is installed, and for other commands."""
    if command != "reproduce" or _entries(COMMANDS):
        return ""
    return f"{STUDIES} is not installed; run pip install {STUDIES}."


@cache
def _entries(group: str) -> tuple[EntryPoint, ...]:
    """Read the entry points of a group, which takes about 30 ms."""
    return tuple(entry_points(group=group))
