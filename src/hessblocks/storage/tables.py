"""Write rows of measurements as csv, and read them as objects by the types of their fields.

`ResultRow` is a row of the results.csv of a run, `SignalRow` of that of `hessblocks signal`.
"""

import csv
import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from hessblocks.storage.files import damaged, read_text, write_text

Record = TypeVar("Record")
Scalar = str | int | float | bool | None

Row = dict[str, Scalar]
"""One measured value and what it belongs to, by column name."""


_FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""Start of a text that spreadsheets evaluate, also after apostrophes."""


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Scalar]]) -> None:
    """Write `rows` under a header, each number with all its digits; what a row lacks is left empty.

    A text such as `=1+1` gets an apostrophe in front, which `read_table` takes away again.

    Args:
        path: the file.
        columns: in their order.
        rows: values by column.

    Raises:
        RunError: the file cannot be written.
    """
    write_text(path, table_text(columns, rows))


def table_text(columns: Sequence[str], rows: Iterable[Mapping[str, Scalar]]) -> str:
    """Format a table as it stands in a file, its header first."""
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: _guarded(row.get(name)) for name in columns} for row in rows)
    return file.getvalue()


def _guarded(value: Scalar) -> Scalar:
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _read_back(text: str) -> str:
    """Take the apostrophe of `_guarded` away."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def columns_of(kind: Any) -> tuple[str, ...]:
    """List the columns of a table whose rows are of this dataclass."""
    return tuple(field.name for field in fields(kind))


def read_table(kind: type[Record], path: Path) -> list[Record]:
    """Read the rows of a csv file, in its order.

    Args:
        kind: dataclass of a row; further columns are left alone.
        path: the file, with a header; there are no rows where it is absent.

    Returns:
        All rows.

    Raises:
        RunError: the file cannot be read, a column is missing, or a row has another length or
            values of another type; the message names the line.
    """
    return list(records(kind, path, _rows(path, columns_of(kind)))) if path.exists() else []


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield each row as column → text, with its line number from 1."""
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
    kind: type[Record], path: Path, lines: Iterator[tuple[int, Mapping[str, Any]]]
) -> Iterator[Record]:
    """Make an object of each line; columns that are no fields are left out.

    Args:
        kind: a dataclass whose fields are str, int or float, or None.
        path: where the lines come from.
        lines: line number and values by name; a csv file's empty text stands for None.

    Raises:
        RunError: a field is missing or of another type; the message names file and line.
    """
    for line, values in lines:
        if not isinstance(values, Mapping):
            raise damaged(path, line, "expected a JSON object")
        try:
            known: Any = kind
            asked = (one for one in _readers(known) if one[2] or one[0] in values)
            yield kind(**{name: read(values[name]) for name, read, _ in asked})
        except KeyError as error:
            raise damaged(path, line, f"{error.args[0]} is missing") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise damaged(path, line, str(error)) from error


@functools.cache
def _readers(kind: type[Any]) -> tuple[tuple[str, Callable[..., Any], bool], ...]:
    """List name, reader, and whether it must be there, of each field."""
    hints = get_type_hints(kind)
    return tuple(
        (one.name, _reader(hints[one.name]), one.default is MISSING) for one in fields(kind)
    )


def _reader(hint: Any) -> Callable[[Any], Any]:
    types = get_args(hint) or (hint,)
    (plain,) = (one for one in types if one is not NoneType)
    read: Callable[[Any], Any] = _number if plain is float else plain
    if NoneType not in types:
        return read
    return lambda value: None if value is None or value == "" else read(value)


def _number(value: object) -> float:
    """Read a number, whole where written so; null stands for one that is not a number."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"expected a number, got {value!r}")
    return int(value) if isinstance(value, str) and value.isdecimal() else float(value)


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One measured value."""

    preset: str
    """Name of the block."""
    seed: int
    """Random seed of the run."""
    stage: str = ""
    """initial, final, or empty where neither applies."""
    quantity: str
    """parameters, flops (of one update), tokens_per_second, peak_memory (bytes of an update),
    training_time (s), loss or frobenius_norm."""
    layer: int | None = None
    """Layer from 0; None outside the layers."""
    group: str = ""
    """Parameter group; empty for the whole model."""
    role: str = ""
    """Kind of the group; empty for the whole model."""
    part: str = ""
    """outer, functional, full, or empty."""
    value: float
    """In the unit of its quantity."""
    standard_error: float | None = None
    """Standard error of the value, if it is an estimate."""
    method: str
    """exact, estimate or measured."""


NORM = "frobenius_norm"
STAGES = ("initial", "final")
COLUMNS = columns_of(ResultRow)
STEPS = ("begun", "mapped-initial", "trained", "mapped-final")
"""The steps of a run in the order of their rows."""
_MARKS = dict(
    zip((("flops", ""), (NORM, "initial"), ("loss", "final"), (NORM, "final")), STEPS, strict=True)
)
"""Quantity and stage of a row that says that a step is done, in the order of the steps."""


def write_results(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write the table, whole or not at all, each number with all its digits.

    Raises:
        RunError: the file cannot be written.
    """
    write_table(path, COLUMNS, map(vars, rows))


def read_results(path: Path) -> list[ResultRow]:
    """Read the table; empty where there is none yet.

    Returns:
        All rows, in the order of the file.

    Raises:
        RunError: the file is damaged; the message names the line.
    """
    return read_table(ResultRow, path)


def step_of(row: ResultRow) -> str:
    """Name the step of a run that measures the row: one of `STEPS`."""
    if row.quantity == NORM:
        return f"mapped-{row.stage}"
    return "begun" if row.quantity in ("parameters", "flops") else "trained"


def is_trained(rows: Iterable[ResultRow]) -> bool:
    """Tell whether a run's final loss is recorded."""
    return any((row.quantity, row.stage) == ("loss", "final") for row in rows)


def steps_done(rows: Iterable[ResultRow]) -> set[str]:
    """Find which of `STEPS` a run has recorded; each writes its rows at once."""
    keys = ((row.quantity, row.stage) for row in rows)
    return {_MARKS[key] for key in keys if key in _MARKS}


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
    """Kind of parameter group, of gradients; number of the head; else empty."""
    value: float | None
    """In the unit of its quantity; may be infinite; None where it cannot be measured."""
    method: str
    """`exact` or `lower bound`; without a value the reason."""


def read_signal(path: Path) -> list[SignalRow]:
    """Read all rows; none where the file is empty.

    Returns:
        Rows in the order of the file.

    Raises:
        RunError: the file is missing or damaged.
    """
    return read_table(SignalRow, path) if read_text(path) else []
