"""Rows of measurements as a csv file, and back."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hessblocks.storage.files import damaged, read_text, write_text
from hessblocks.storage.identity import SEAL, SHAPE, State, sealed, state_of
from hessblocks.storage.records import Record, records

Scalar = str | int | float | bool | None

Row = dict[str, Scalar]
"""One measured value and what it belongs to, by column name."""


GROWTH_COLUMNS = (
    "study", "layers", "layer", "group", "part", "sigma", "seed", "value", "standard_error", "method",
)  # fmt: skip


def write_table(
    path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Scalar]], of: str = ""
) -> None:
    """Write `rows` under a header, each number with all its digits; what a row lacks is left empty.

    Args:
        path: the file.
        columns: in their order.
        rows: values by column.
        of: identity of the run, sealed into a last column; empty leaves the rows as they are.

    Raises:
        RunError: the file cannot be written.
    """
    texts = (as_texts(row, columns) for row in rows)
    if of:
        columns, texts = [*columns, SEAL], (sealed(of, row) for row in texts)
    write_text(path, table_text(columns, texts))


def table_text(columns: Sequence[str], rows: Iterable[Mapping[str, Scalar]]) -> str:
    """A table as it stands in a file, its header first."""
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def as_texts(row: Mapping[str, Scalar], columns: Iterable[str]) -> dict[str, str]:
    """A row as it stands in a file; what it lacks is empty."""
    return {name: "" if row.get(name) is None else str(row[name]) for name in columns}


def columns_of(kind: Any) -> tuple[str, ...]:
    """The columns of a table whose rows are of this dataclass."""
    return tuple(field.name for field in fields(kind))


def read_table(kind: type[Record], path: Path) -> list[Record]:
    """The rows of a csv file, in its order.

    Args:
        kind: dataclass of a row; further columns are left alone.
        path: the file, with a header; there are no rows where it is absent.

    Returns:
        All rows.

    Raises:
        RunError: the file cannot be read, a column is missing, or a row has another length or values of
            another type; the message names the line.
    """
    return list(records(kind, path, _rows(path, columns_of(kind)))) if path.exists() else []


def table_states(path: Path, owners: Collection[str] = ()) -> list[State]:
    """What each row of a table is: whole, foreign, edited or unsealed.

    Args:
        path: the file, with a header; there are no rows where it is absent.
        owners: identities of the runs that rows may be of; none means any.

    Returns:
        One a row, in the order of the file.

    Raises:
        RunError: the file cannot be read, or a row has another length.
    """
    return [state_of(row, owners) for _, row in _rows(path, ())] if path.exists() else []


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Each row as column → text, with its line number from 1."""
    reader = csv.DictReader(read_text(path).splitlines())
    known = {SEAL, *(reader.fieldnames or ())}
    absent = [name for name in columns if name not in known]
    if absent:
        raise damaged(path, 1, f"expected the columns {', '.join(absent)}")
    try:
        for row in reader:
            if None in row or None in row.values():
                raise damaged(path, reader.line_num, "expected as many values as there are columns")
            if not SHAPE.fullmatch(row.get(SEAL, "")):
                raise damaged(path, reader.line_num, "its seal is cut off")
            yield reader.line_num, row
    except csv.Error as error:
        raise damaged(path, reader.line_num, f"not CSV ({error})") from error
