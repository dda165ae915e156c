"""The files of a run folder, read line by line; a damaged line is named by file and number."""

from __future__ import annotations

import csv
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hessblocks.errors import RunError


def damaged(path: Path, line: int | None, reason: str) -> RunError:
    """The error for a file that cannot be understood, to be raised by the caller.

    Args:
        path: the file.
        line: its damaged line, counted from 1; None for the file as a whole.
        reason: what was expected and what came.

    Returns:
        An error that names the file, the line and what to do.
    """
    where = f"{path}, line {line}" if line is not None else f"{path}"
    return RunError(f"{where}: {reason}; mend or remove it, or run the command again.")


def read_object(path: Path) -> Mapping[str, Any]:
    """The JSON object that the file holds.

    Raises:
        RunError: the file cannot be read or is not one JSON object.
    """
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise damaged(path, error.lineno, f"not JSON ({error.msg})") from error
    if not isinstance(value, dict):
        raise damaged(path, None, f"expected one JSON object, got {type(value).__name__}")
    return value


def read_json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each object of a file with one JSON object a line, with its line number from 1.

    A last line that has no end, as a killed run leaves it, is left out with a warning.

    Raises:
        RunError: the file cannot be read, or a line is not a JSON object.
    """
    for number, line in enumerate(_text(path).splitlines(keepends=True), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            if not line.endswith("\n"):
                warnings.warn(f"{path}: its last line is half-written and left out.", stacklevel=2)
                return
            raise damaged(path, number, f"not JSON ({error.msg})") from error
        if not isinstance(value, dict):
            raise damaged(path, number, "expected a JSON object")
        yield number, value


def read_table(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Each row of a CSV file as column → text, with its line number from 1.

    Args:
        path: the file, with a header.
        columns: the columns that must be there; others are left alone.

    Raises:
        RunError: the file cannot be read, a column is missing, or a row has another length.
    """
    reader = csv.DictReader(_text(path).splitlines())
    absent = [name for name in columns if name not in (reader.fieldnames or ())]
    if absent:
        raise damaged(path, 1, f"expected the columns {', '.join(absent)}")
    try:
        for row in reader:
            if None in row or None in row.values():
                raise damaged(path, reader.line_num, "expected as many values as there are columns")
            yield reader.line_num, row
    except csv.Error as error:
        raise damaged(path, reader.line_num, f"not CSV ({error})") from error


def number(value: object) -> float:
    """A float from JSON or CSV; null stands for a value that is not a number.

    Raises:
        TypeError: `value` is of another kind.
        ValueError: `value` is a text that is not a number.
    """
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"expected a number, got {value!r}")
    return float(value)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RunError(f"{path}: cannot be read ({reason}); check the file.") from error
