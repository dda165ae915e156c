"""Write rows of measurements as CSV, and read them as objects with typed fields.

`ResultRow` is a row of results.csv of a run, `SignalRow` a row of results.csv of
`hessblocks signal`.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from cattrs import Converter

from hessblocks.storage.files import damaged, read_text, write_text
from hessblocks.typed import TEXT, typed

RowType = TypeVar("RowType")
Scalar = str | int | float | bool | None

Row = dict[str, Scalar]
"""Row of a table: column → value."""


_FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""Start of a text that a spreadsheet would evaluate, also after apostrophes."""


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Scalar]]) -> None:
    """Write a CSV table with a header; numbers have all digits, missing values are empty.

    A text such as `=1+1` gets a leading apostrophe, which `read_table` removes.

    Args:
        path: path of the file.
        columns: names of the columns, in order.
        rows: column → value, for each row.

    Raises:
        RunError: the file cannot be written.
    """
    write_text(path, table_text(columns, rows))


def table_text(columns: Sequence[str], rows: Iterable[Mapping[str, Scalar]]) -> str:
    """Format a table as CSV text with a header."""
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: _guarded(row.get(name)) for name in columns} for row in rows)
    return file.getvalue()


def _guarded(value: Scalar) -> Scalar:
    """Put an apostrophe before a text that a spreadsheet would evaluate as a formula."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _read_back(text: str) -> str:
    """Remove the apostrophe of `_guarded`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def columns_of(kind: Any) -> tuple[str, ...]:
    """List the columns of a table whose rows are instances of a dataclass."""
    return tuple(field.name for field in fields(kind))


def read_table(kind: type[RowType], path: Path) -> list[RowType]:
    """Read the rows of a CSV file, in order.

    Args:
        kind: dataclass of a row; further columns are ignored.
        path: file with a header; a missing file has no rows.

    Returns:
        All rows.

    Raises:
        RunError: the file cannot be read, a column is missing, or a row has a wrong length or a
            value of a wrong type; the message has the number of the line.
    """
    return list(records(kind, path, _rows(path, columns_of(kind)), TEXT)) if path.exists() else []


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield (line number from 1, column → text) for each row."""
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    absent = [name for name in columns if name not in (reader.fieldnames or ())]
    if absent:
        raise damaged(path, 1, f"expected the columns {', '.join(absent)}")
    try:
        for row in reader:
            if None in row or None in row.values():
                raise damaged(path, reader.line_num, "expected as many values as there are columns")
            yield reader.line_num, {name: _read_back(text) for name, text in row.items()}
    except csv.Error as error:
        raise damaged(path, reader.line_num, f"not CSV ({error})") from error


def records(
    kind: type[RowType],
    path: Path,
    lines: Iterable[tuple[int, Mapping[str, Any]]],
    converter: Converter,
) -> Iterator[RowType]:
    """Convert each line to an object; names that are not fields are ignored.

    Args:
        kind: dataclass.
        path: file of the lines, for the message.
        lines: line number, and name → value.
        converter: `typed.LINES` or `typed.TEXT`.

    Raises:
        RunError: a field is missing or has a wrong type; the message has file and line.
    """
    for line, values in lines:
        try:
            yield typed(converter, kind, values)
        except ValueError as error:
            raise damaged(path, line, str(error)) from error


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """Row of results.csv: one measured value."""

    preset: str
    """Name of the block."""
    seed: int
    """Random seed of the run."""
    stage: str = ""
    """initial, final, or empty if neither applies."""
    quantity: str
    """parameters, flops (per update), tokens_per_second, peak_memory (bytes of an update),
    training_time (s), loss or frobenius_norm (nats per token)."""
    layer: int | None = None
    """Layer from 0; None outside the layers."""
    group: str = ""
    """Parameter group; empty for the whole model."""
    role: str = ""
    """Role of the group, such as query; empty for the whole model."""
    part: str = ""
    """outer, functional, full, or empty."""
    value: float
    """Value, in the unit of its quantity."""
    standard_error: float | None = None
    """Standard error of the value, if the value is an estimate."""
    method: str
    """exact, estimate or measured."""


NORM = "frobenius_norm"
STAGES = ("initial", "final")
COLUMNS = columns_of(ResultRow)
STEPS = ("begun", "mapped-initial", "trained", "mapped-final")
"""Steps of a run, in the order of their rows."""
_MARKS = dict(
    zip((("flops", ""), (NORM, "initial"), ("loss", "final"), (NORM, "final")), STEPS, strict=True)
)
"""(Quantity, stage) of a row → step that is done when this row exists."""


def write_results(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write results.csv, whole or not at all; numbers have all digits.

    Raises:
        RunError: the file cannot be written.
    """
    write_table(path, COLUMNS, map(vars, rows))


def read_results(path: Path) -> list[ResultRow]:
    """Read results.csv; empty if there is no file.

    Returns:
        All rows, in the order of the file.

    Raises:
        RunError: the file is damaged; the message has the number of the line.
    """
    return read_table(ResultRow, path)


def step_of(row: ResultRow) -> str:
    """Return the step of a run that measures the row, one of `STEPS`."""
    if row.quantity == NORM:
        return f"mapped-{row.stage}"
    return "begun" if row.quantity in ("parameters", "flops") else "trained"


def is_trained(rows: Iterable[ResultRow]) -> bool:
    """Tell whether a run's final loss is recorded."""
    return any((row.quantity, row.stage) == ("loss", "final") for row in rows)


def steps_done(rows: Iterable[ResultRow]) -> set[str]:
    """Find the steps of a run that are done; a step writes all its rows together."""
    keys = ((row.quantity, row.stage) for row in rows)
    return {_MARKS[key] for key in keys if key in _MARKS}


@dataclass(frozen=True, kw_only=True)
class SignalRow:
    """Row of results.csv of `hessblocks signal`: one quantity of one layer of one model."""

    model: str
    """Name of the model."""
    layer: int | None
    """Layer from 0; None for the inputs of the first layer."""
    quantity: str
    """Name of the quantity, such as `token_similarity` or `gradient_norm`."""
    role: str
    """Role of the parameter group of a gradient, or number of a head; else empty."""
    value: float | None
    """Value, in the unit of its quantity; may be infinite; None if it cannot be measured."""
    method: str
    """`exact` or `lower bound`; if there is no value, the reason."""


def read_signal(path: Path) -> list[SignalRow]:
    """Read the rows of `hessblocks signal`; none if the file is empty.

    Returns:
        All rows, in the order of the file.

    Raises:
        RunError: the file is missing or damaged.
    """
    return read_table(SignalRow, path) if read_text(path) else []
