"""Write rows of measurements as csv, and read them as objects by the types of their fields."""

import csv
import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
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
