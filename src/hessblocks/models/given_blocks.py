"""Read the blocks in a command's arguments: presets, variants of presets, and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hessblocks.blocks import JOIN, PRESETS, BlockConfig, parted, pattern_names
from hessblocks.errors import ArgumentError, RunError, check_name
from hessblocks.storage import canonical, read_object, stays_inside

ENDING = ".json"
"""Suffix of a file with a block."""


def read_blocks(
    words: Sequence[str], option: str = "--presets", presets: Sequence[str] = PRESETS
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Read names of blocks; a file's block is named like the file, without the suffix.

    Args:
        words: presets, variants in brackets, files, or several of these joined by +.
        option: name of the argument, for errors.
        presets: allowed names besides files.

    Returns:
        The names; and for each file, name and block as JSON.

    Raises:
        ArgumentError: no words, an unknown name, invalid brackets, a file that is missing or has no
            block of this version, or two blocks with the same name.
    """
    files: dict[str, Path] = {}
    names = []
    try:
        for word in words:
            parts = [_named(part, files) for part in pattern_names(word)]
            for part in parts:
                check_name(option, parted(part)[0], [*presets, *files])
            names.append(JOIN.join(parts))
        blocks = {name: canonical(_read(path).to_dict()) for name, path in files.items()}
    except _FileError as refusal:
        raise ArgumentError(f"{option}: {refusal}") from refusal
    if not names:
        raise ArgumentError(f"{option}: expected names with commas; known: {', '.join(presets)}.")
    return tuple(names), tuple(blocks.items())


class _FileError(Exception):
    """Error in a file; the message does not include the argument."""


def _named(word: str, files: dict[str, Path]) -> str:
    """Return the name of the block in `word`; add a file to `files`."""
    if ENDING not in word:
        return word
    file, ending, brackets = word.rpartition(ENDING)
    path, name = Path(file + ending), Path(file).name
    if name in PRESETS or files.setdefault(name, path) != path:
        raise _FileError(f"there are two blocks called {name!r}; rename {path}.")
    if not stays_inside(name) or not name or set(name) & set("+,[]"):
        raise _FileError(f"{path}: its name cannot name a block; rename the file.")
    return name + brackets


def _read(path: Path) -> BlockConfig:
    """Read a block from a file in the format of `BlockConfig.to_dict`."""
    if not path.is_file():
        raise _FileError(f"{path} is not a file; give one that exists.")
    try:
        return BlockConfig.from_dict(read_object(path))
    except (ArgumentError, RunError) as error:
        raise _FileError(
            f"{path} holds no block that this version knows ({error}); write it with "
            "BlockConfig.to_dict."
        ) from error
