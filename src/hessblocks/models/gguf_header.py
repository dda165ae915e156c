"""Hold the counts, lengths and offsets of a GGUF header against the file's size.

gguf's reader believes them: an array of 2⁶³ entries in a file of 90 bytes would have no end.
"""

import struct
from pathlib import Path
from typing import BinaryIO

WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""GGUF's scalar types → bytes."""
STRING, ARRAY = 8, 9
MOST_ENTRIES = 1 << 20
"""Most entries of an array; the longest in use are the merges of 260,000 tokens."""
MOST_AXES = 4


def check_header(path: Path) -> None:
    """Check a GGUF header without trusting any number in it.

    Args:
        path: path of the file.

    Raises:
        ValueError: not a GGUF header, or a count, length or offset that the file is too short for.

    Source: the GGUF specification, ggml/docs/gguf.md.
    """
    with path.open("rb") as file:
        _Header(file, path.stat().st_size).check()


class _Header:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self._order = file, size, "<"

    def check(self) -> None:
        from gguf import GGML_QUANT_SIZES

        if self._file.read(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if not self._number("I") & 0xFFFF:  # written by a big-endian machine
            self._order = ">"
        tensors, fields = self._count(24), self._count(13)
        for _ in range(fields):
            self._skip(self._count(1))
            self._skip_value(self._number("I"))
        total = 0
        for _ in range(tensors):
            self._skip(self._count(1))
            axes = self._number("I")
            if axes > MOST_AXES:
                raise ValueError(f"a tensor has {axes} axes")
            entries = 1
            for _ in range(axes):
                entries *= self._number("Q")
            kind, offset = self._number("I"), self._number("Q")
            if kind not in GGML_QUANT_SIZES:
                raise ValueError(f"a tensor has the unknown type {kind}")
            block, width = GGML_QUANT_SIZES[kind]  # type: ignore[index]
            total += entries * width // block
            if max(total, offset + entries * width // block) > self._size - self._file.tell():
                raise ValueError(f"a tensor has {entries} entries at {offset}, beyond its end")

    def _number(self, kind: str) -> int:
        width = struct.calcsize(kind)
        data = self._file.read(width)
        if len(data) < width:
            raise ValueError("it ends in its header")
        return int(struct.unpack(self._order + kind, data)[0])

    def _count(self, width: int) -> int:
        """Read the number of things that take at least `width` bytes each."""
        count = self._number("Q")
        if count * width > self._size - self._file.tell():
            raise ValueError(f"it lists {count} entries in {self._size} bytes")
        return count

    def _skip(self, count: int) -> None:
        self._file.seek(count, 1)

    def _skip_value(self, kind: int) -> None:
        if kind == STRING:
            self._skip(self._count(1))
        elif kind == ARRAY:
            kind = self._number("I")
            if kind != STRING and kind not in WIDTHS:
                raise ValueError(f"an array has the unknown type {kind}")
            count = self._count(WIDTHS.get(kind, 8))
            if count > MOST_ENTRIES:
                raise ValueError(f"an array has {count} entries")
            if kind == STRING:
                for _ in range(count):
                    self._skip(self._count(1))
            else:
                self._skip(count * WIDTHS[kind])
        elif kind in WIDTHS:
            self._skip(WIDTHS[kind])
        else:
            raise ValueError(f"a field has the unknown type {kind}")
