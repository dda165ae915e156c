"""Read long texts in blocks, to save memory, and cut them into pieces at line ends."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_BLOCK = 1 << 20
_SLICE = 1 << 16
_WORD = re.compile(r"(?=[ \n]\S)")
_LONG = re.compile(r"\S{8192}|\s{8192}")
"""Start of a run longer than words are; BPE learns from one in time quadratic in its length."""


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """Characters `start` to `stop` of a file of UTF-8 text."""

    path: Path
    """Path of the file."""
    start: int = 0
    """Index of the first character; a byte order mark is not counted."""
    stop: int
    """Index after the last character."""

    def __len__(self) -> int:
        return self.stop - self.start

    def blocks(self) -> Iterator[str]:
        """Yield the text in blocks of about a million characters."""
        at = 0
        for block in _blocks_of_file(self.path):
            yield block[max(0, self.start - at) : max(0, self.stop - at)]
            at += len(block)

    def cut(self, at: int) -> tuple[TextFile, TextFile]:
        """Cut a whole file in two, at the last line end shortly before `at`, or else at `at`."""
        read = line = 0
        for block in TextFile(path=self.path, stop=at).blocks():
            if end := block.rfind("\n") + 1:
                line = read + end
            read += len(block)
        end_of_head = line if line > at // 2 else at
        return replace(self, stop=end_of_head), replace(self, start=end_of_head)


Text = str | TextFile


def text_file(path: Path) -> TextFile | None:
    """Open a file as UTF-8 text.

    Returns:
        The whole file; None if it is blank.

    Raises:
        UnicodeError: the file contains a zero byte, or is not UTF-8.
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
    # newline="\n" leaves all line ends unchanged
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        while block := file.read(_BLOCK):
            yield block


def blocks_of(text: Text) -> Iterator[str]:
    """Cut a text into blocks of at most a million characters."""
    if isinstance(text, TextFile):
        return text.blocks()
    return (text[start : start + _BLOCK] for start in range(0, len(text), _BLOCK))


def pieces_of(text: Text) -> Iterator[str]:
    """Cut the text into pieces of about a million characters, at line ends if possible."""
    rest = ""
    for block in blocks_of(text):
        rest += block
        while len(rest) > _BLOCK:
            # rfind returns −1 without a line end, and −1 + 1 is false
            cut = rest.rfind("\n", 0, _BLOCK) + 1 or _BLOCK
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


def slices_of(piece: str) -> Iterator[str]:
    """Cut a piece at boundaries of byte-level BPE, so that its tokens do not change.

    The last white space before a word always begins a token. Short texts need far less memory
    during encoding.
    """
    start = 0
    while match := _WORD.search(piece, start + _SLICE):
        yield piece[start : match.start()]
        start = match.start()
    yield piece[start:]


def cut_runs(text: str) -> Iterator[str]:
    """Cut runs without or of white space after each 8,192 characters."""
    start = 0
    for match in _LONG.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def thinned(texts: Iterable[Text], characters: int, limit: int) -> Iterator[str]:
    """Yield every k-th piece of the texts, with k such that about `limit` characters remain.

    Args:
        texts: documents.
        characters: total number of characters.
        limit: number of characters that remain.

    Returns:
        The remaining pieces, in order.
    """
    step = max(1, -(-characters // limit))
    return itertools.islice(itertools.chain.from_iterable(map(pieces_of, texts)), 0, None, step)
