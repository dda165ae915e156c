"""Load the commands and kinds of folders that other distributions register as entry points.

The group `hessblocks.commands` holds commands, each a function as in `cli/commands`. The group
`hessblocks.folders` holds kinds of folders, each a `FolderKind`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessblocks.errors import ArgumentError, RunError

if TYPE_CHECKING:
    from hessblocks.storage import Finding

COMMANDS, FOLDERS = "hessblocks.commands", "hessblocks.folders"
ELSEWHERE = {"reproduce": "hessblocks-studies"}
"""Command → distribution to install, if a user types the command without it."""


@dataclass(frozen=True, kw_only=True)
class FolderKind:
    """Functions of `hessblocks report` and `check` for the folders that one command writes."""

    holds: Callable[[Path], bool]
    """Tells whether a folder is of this kind."""
    write_page: Callable[[Path], tuple[Path, list[str]]]
    """Writes the page of a folder; returns its path and one line for each missing part."""
    check: Callable[[Path], Sequence[Finding]]
    """Checks the files of a folder and returns one finding per file; writes nothing."""


def other_commands(asked: str) -> Iterator[tuple[str, Callable[..., None], str]]:
    """Load the commands of other distributions.

    Args:
        asked: name of the command to run; any other word if commands are only listed.

    Yields:
        Name, function and distribution of each command. A command that cannot be loaded is left
        out with a warning, unless it is `asked`.

    Raises:
        ArgumentError: the distribution of the command `asked` is not installed.
        RunError: the command `asked` cannot be loaded.
    """
    if lacking := lacking_for(asked):
        raise ArgumentError(f"{asked}: {lacking}")
    for entry in _entries(COMMANDS):
        try:
            yield entry.name, _loaded(entry), _distribution(entry)
        except RunError as error:
            if entry.name == asked:
                raise
            warnings.warn(str(error), stacklevel=2)


def lacking_for(command: str) -> str:
    """Write what to install for a command of another distribution; empty if it is installed."""
    name = ELSEWHERE.get(command)
    if name is None or command in {entry.name for entry in _entries(COMMANDS)}:
        return ""
    return f"{name} is not installed; run pip install {name}."


def folder_kinds() -> list[FolderKind]:
    """Load the kinds of folders that other distributions register.

    Returns:
        Kinds of all distributions, in no particular order.

    Raises:
        RunError: a kind cannot be loaded.
    """
    return [_loaded(entry) for entry in _entries(FOLDERS)]


@cache
def _entries(group: str) -> tuple[EntryPoint, ...]:
    """Read the entry points of a group, which takes about 30 ms."""
    return tuple(entry_points(group=group))


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        name = _distribution(entry)
        raise RunError(
            f"{entry.name}: {name} cannot be loaded ({error}); run pip install --upgrade "
            f"hessblocks {name}, which belong together."
        ) from error
