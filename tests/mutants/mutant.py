"""A planted fault: one text of one file is replaced by another, and the named tests must turn red."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault."""

    name: str
    """What is wrong, in a few words; each mutant has a name of its own."""
    file: str
    """Where, below src/hessblocks."""
    find: str
    """The right text; it stands exactly once in the file."""
    replace: str
    """The wrong text."""
    tests: tuple[str, ...]
    """Test files, or tests as `file::name`, below tests."""


def planted(text: str, mutant: Mutant) -> str:
    """The text of a file with the fault in it.

    Raises:
        ValueError: `find` does not stand there exactly once.
    """
    if (count := text.count(mutant.find)) != 1:
        raise ValueError(f"{mutant.file} has {count} times {mutant.find!r}, expected it once")
    return text.replace(mutant.find, mutant.replace)
