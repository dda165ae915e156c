"""Find what other distributions add to the command line, by their entry points.

Two groups: `hessblocks.commands` holds commands, each a function like those in `cli/commands`, and
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
"""Command → the distribution that brings it, for whoever types it without."""


@dataclass(frozen=True, kw_only=True)
class FolderKind:
    """Folders that one command writes, as `hessblocks report` and `check` need to know them."""

    holds: Callable[[Path], bool]
    """Whether a folder is of this kind."""
    write_page: Callable[[Path], tuple[Path, list[str]]]
    """Writes its page; returns the page's path and a line for each thing that is missing."""
    check: Callable[[Path], Sequence[Finding]]
    """Looks at its files, a finding each; writes nothing."""


def other_commands(asked: str) -> Iterator[tuple[str, Callable[..., None], str]]:
    """Load the commands of other distributions.

    Args:
        asked: the command that is to run; any other word where they are only listed.

    Yields:
        Name, function and distribution; one that cannot be loaded is left out with a warning,
        unless it was asked for.

    Raises:
        ArgumentError: the command that was asked for belongs to a distribution that is not
            installed.
        RunError: it cannot be loaded.
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
    """Say what to install for a command of another distribution; empty if nothing is missing."""
    name = ELSEWHERE.get(command)
    if name is None or command in {entry.name for entry in _entries(COMMANDS)}:
        return ""
    return f"{name} is not installed; run pip install {name}."


def folder_kinds() -> list[FolderKind]:
    """Load the kinds of folders that other distributions know.

    Returns:
        Those of all distributions, in no order.

    Raises:
        RunError: one cannot be loaded.
    """
    return [_loaded(entry) for entry in _entries(FOLDERS)]


@cache
def _entries(group: str) -> tuple[EntryPoint, ...]:
    """Read the entry points of a group, which takes some 30 ms."""
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
