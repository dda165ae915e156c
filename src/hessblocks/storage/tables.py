"""Write rows of measurements as CSV, and read them as objects with typed fields.

`ResultRow` is a row of results.csv of a run, `SignalRow` a row of results.csv of
`hessblocks signal`.
"""

import csv
import io
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from cattrs import Converter

from hessblocks.errors import RunError
from hessblocks.storage import files
from hessblocks.storage.files import append, damaged, numbered, parse_json, read_text, write_text
from hessblocks.typed import LINES, TEXT, typed

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
    if absent := [name for name in columns if name not in (reader.fieldnames or ())]:
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
    """parameters, flops (per update), tokens_per_second, peak_memory (bytes on CUDA),
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
    return {_MARKS[key] for row in rows if (key := (row.quantity, row.stage)) in _MARKS}


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


JsonLine = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Line of metrics.jsonl: a loss along training."""

    preset: str
    """Name of the block."""
    seed: int
    """Random seed of the run."""
    split: str
    """`train` or `validation`."""
    step: int
    """Optimiser updates so far."""
    seconds: float
    """Training time so far, in seconds."""
    loss: float
    """Nats per token; not a number where training diverged."""
    tokens: int | None = None
    """Training tokens so far; None where they were not recorded."""
    diverged: str = ""
    """First quantity that was not finite, if the run diverged at this step."""
    tokens_per_second: float | None = None
    """Training speed since the previous line; None for validation losses."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Line of observations.jsonl: a value measured along training."""

    preset: str
    """Name of the block."""
    seed: int
    """Random seed of the run."""
    step: int
    """Optimiser updates so far."""
    tokens: int
    """Training tokens so far."""
    seconds: float
    """Training time so far, in seconds."""
    quantity: str
    """Name of the quantity, such as `beta_FF`, `token_similarity` or `frobenius_norm`."""
    layer: int | None
    """Layer from 0; None outside the layers."""
    role: str = ""
    """Kind of parameter group; may be empty."""
    group: str = ""
    """Parameter group; may be empty."""
    part: str = ""
    """`outer` (H_o), `functional` (H_f), `full` (H), or empty."""
    value: float
    """Value, in the unit of its quantity."""
    standard_error: float | None = None
    """Standard error of `value`; None where it was not estimated."""
    batch_loss: float | None = None
    """Loss on the batch of a curvature measurement, nats per token; None for other quantities."""


KINDS: dict[str, type[Any]] = {"metrics.jsonl": Metric, "observations.jsonl": Observation}
"""File → class of its lines; a line may have further fields."""


def append_line(path: Path, line: JsonLine) -> None:
    """Append one JSON line; NaN and infinities become null.

    Args:
        path: path of the file; its last line has a line end.
        line: JSON values by name.

    Raises:
        RunError: the file cannot be written.
    """
    append(path, (json.dumps(files.finite(line)) + "\n").encode())


def read_lines(path: Path) -> list[JsonLine]:
    """Read all lines before the first damaged one; a killed process may leave a partial line.

    Returns:
        JSON object of each line; none if there is no file.

    Raises:
        RunError: the file cannot be read.
    """
    return _before_damage(path)[0]


def fault_in_lines(path: Path, *, torn: bool) -> str:
    """Report the first damaged line; empty if there is none.

    Args:
        path: path of the file.
        torn: whether a last line without a line end counts; a killed process may leave one.

    Returns:
        End of a sentence that begins with the file's name.
    """
    _, number, bad = _before_damage(path)
    return f"its line {number} is damaged" if bad.endswith(b"\n") or (bad and torn) else ""


def fault_in_finished_lines(path: Path) -> str:
    """Report a damaged line, or the lack of lines, in the file of a finished run.

    Args:
        path: path of the file.

    Returns:
        End of a sentence that begins with the file's name; empty if there is no fault.
    """
    return fault_in_lines(path, torn=True) or ("" if read_lines(path) else "absent or empty")


def read_finished_lines(path: Path) -> list[JsonLine]:
    """Read all lines of a run whose training is finished.

    Args:
        path: path of the file.

    Returns:
        JSON object of each line.

    Raises:
        RunError: the file is absent or empty, or a line is damaged.
    """
    if fault := fault_in_finished_lines(path):
        raise RunError(
            f"{path}: {fault}, although the run has ended; remove {path.parent} and run again to "
            "train it once more."
        )
    return read_lines(path)


def read_typed(kind: type[RowType], path: Path) -> Iterator[RowType]:
    """Yield the lines of a file as objects; nothing if there is no file.

    A partial last line, which a killed run may leave, is skipped with a warning.

    Args:
        kind: `Metric` or `Observation`.
        path: path of the file.

    Raises:
        RunError: a line is damaged; the message has its number.
    """
    for number, line in numbered(path):
        try:
            value = parse_json(line.decode())
        except ValueError as error:
            if line.isascii() and not line.endswith(b"\n"):
                warnings.warn(f"{path}: its last line is half-written and left out.", stacklevel=2)
                return
            reason = getattr(error, "msg", "not UTF-8 text")
            raise damaged(path, number, f"not JSON ({reason})") from error
        yield from records(kind, path, [(number, value)], LINES)


def _before_damage(path: Path) -> tuple[list[JsonLine], int, bytes]:
    """Read the lines before the first damaged one, and the number and text of the damaged one."""
    lines: list[JsonLine] = []
    for number, line in numbered(path):
        try:
            value = parse_json(line.decode())
            next(records(KINDS[path.name], path, [(number, value)], LINES))
        except (ValueError, RunError):
            return lines, number, line
        lines.append(value)
    return lines, 0, b""
