"""Rows of measurements as a csv file, and back."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from hessblocks.storage.files import atomic_path

Scalar = str | int | float | bool | None

Row = dict[str, Scalar]
"""One measured value and what it belongs to, by column name."""


GROWTH_COLUMNS = (
    "study", "layers", "layer", "group", "part", "sigma", "seed", "value", "standard_error", "method",
)  # fmt: skip


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write `rows` under a header; what a row lacks is left empty.

    Raises:
        RunError: the file cannot be written.
    """
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _text(row.get(name)) for name in columns} for row in rows)


def _text(value: Scalar) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)
