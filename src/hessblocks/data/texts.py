"""Read long texts in blocks, so that none is held whole, and cut them into pieces at line ends."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_BLOCK = 1 << 20
_SLICE = 1 << 16
_WORD = re.compile(r"(?=[ \n]\S)")


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """Characters `start` to `stop` of a file of UTF-8 text."""

    path: Path
    """The file."""
    start: int = 0
    """First character, counted without a byte order mark."""
    stop: int
    """Number of the character after the last one."""

    def __len__(self) -> int:
        return self.stop - self.start

    def blocks(self) -> Iterator[str]:
        """Read about a million characters at a time; together they are the text."""
        at = 0
        for block in _blocks_of_file(self.path):
            yield block[max(0, self.start - at) : max(0, self.stop - at)]
            at += len(block)

    def cut(self, at: int) -> tuple[TextFile, TextFile]:
        """Cut a whole file in two, at the last line end before `at` where one is near."""
        seen = line = 0
        for block in TextFile(path=self.path, stop=at).blocks():
            if end := block.rfind("\n") + 1:
                line = seen + end
            seen += len(block)
        place = line if line > at // 2 else at
        return replace(self, stop=place), replace(self, start=place)


Text = str | TextFile


def text_file(path: Path) -> TextFile | None:
    """Open a file as UTF-8 text.

    Returns:
        The whole file; None where it is blank.

    Raises:
        UnicodeError: it holds a zero byte, or is not UTF-8.
    """
    length, blank = 0, True
    for block in _blocks_of_file(path):
        if "\0" in block:
            raise UnicodeError(path)
        blank = blank and not block.strip()
        length += len(block)
    return None if blank else TextFile(path=path, stop=length)


def begins_as_text(path: Path) -> bool:
    """Tell whether the first million characters of a file are UTF-8 without a zero byte."""
    try:
        return "\0" not in next(_blocks_of_file(path), "")
    except UnicodeDecodeError:
        return False


def _blocks_of_file(path: Path) -> Iterator[str]:
    # with this newline, line ends are left as they are
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        while block := file.read(_BLOCK):
            yield block


def blocks_of(text: Text) -> Iterator[str]:
    """Cut a text into blocks of a million characters at most."""
    if isinstance(text, TextFile):
        return text.blocks()
    return (text[start : start + _BLOCK] for start in range(0, len(text), _BLOCK))


def pieces_of(text: Text) -> Iterator[str]:
    """Cut the text into pieces of about a million characters, at line ends where possible."""
    rest = ""
    for block in blocks_of(text):
        rest += block
        while len(rest) > _BLOCK:
            # rfind gives −1 where there is no line end, and `+ 1` makes that false
            cut = rest.rfind("\n", 0, _BLOCK) + 1 or _BLOCK
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


def slices_of(piece: str) -> Iterator[str]:
    """Cut a piece where byte-level BPE cuts it too, so that its tokens stay the same.

    The last white space before a word begins a token, whatever stands before it. Short texts take
    far less memory while they are encoded.
    """
    start = 0
    while found := _WORD.search(piece, start + _SLICE):
        yield piece[start : found.start()]
        start = found.start()
    yield piece[start:]


def thinned(texts: Iterable[Text], characters: int, most: int) -> Iterator[str]:
    """Take every k-th piece of the texts, k such that about `most` characters remain.

    Args:
        texts: documents.
        characters: how long they are together.
        most: how many remain.

    Returns:
        The pieces that remain, in order.
    """
    step = max(1, -(-characters // most))
    pieces = (piece for text in texts for piece in pieces_of(text))
    return itertools.islice(pieces, 0, None, step)
