"""results.csv of `hessblocks signal`: one measured value a row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hessblocks.storage.files import read_text
from hessblocks.storage.tables import read_table


@dataclass(frozen=True, kw_only=True)
class SignalRow:
    """A quantity of one layer of one model."""

    model: str
    """Its name."""
    layer: int | None
    """From 0; None for what enters the first."""
    quantity: str
    """Such as `token_similarity` or `gradient_norm`."""
    role: str
    """Kind of parameter group, of gradients; else empty."""
    value: float
    """In the unit of its quantity; may be infinite."""


def read_signal(path: Path) -> list[SignalRow]:
    """All rows; none where the file is empty.

    Returns:
        Rows in the order of the file.

    Raises:
        RunError: the file is missing or damaged.
    """
    return read_table(SignalRow, path) if read_text(path) else []
