"""metrics.jsonl: one measured loss a line, appended as training goes."""

from __future__ import annotations

import csv
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.errors import RunError
from hessblocks.storage.files import write_text


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add one line; what is not a finite number becomes null.

    Raises:
        RunError: the file cannot be written.
    """
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror}); free some space and run again."
        ) from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines before the first damaged one, as a killed process leaves its last."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            break
        if not isinstance(line, dict):
            break
        lines.append(line)
    return lines


def read_finished_lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a run that is trained.

    Raises:
        RunError: the file is absent, or a line of it is damaged.
    """
    lines = read_lines(path)
    count = len(path.read_bytes().splitlines()) if path.exists() else 0
    if not lines or len(lines) < count:
        what = f"its line {len(lines) + 1} is damaged" if count else "absent or empty"
        raise RunError(
            f"{path}: {what}, though the run is trained; remove {path.parent} and run again to "
            "train it once more."
        )
    return lines


def cut_back(path: Path, step: int | None) -> None:
    """Forget what came after a step, so that training can go on from there.

    Args:
        path: the file.
        step: the last step to keep; None forgets all.

    Raises:
        RunError: the file cannot be written.
    """
    kept = [] if step is None else [line for line in read_lines(path) if line["step"] <= step]
    write_text(path, "".join(json.dumps(line) + "\n" for line in kept))


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


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One line: a value measured on the way."""

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
    """Such as `beta_FF`, `token_similarity` or `frobenius_norm`."""
    layer: int | None
    """Layer from 0; None outside the layers."""
    role: str
    """Kind of parameter group; may be empty."""
    group: str
    """Parameter group; may be empty."""
    part: str
    """`outer` (H_o), `functional` (H_f), `full` (H), or empty."""
    value: float
    """The value, in the unit of its quantity."""
    standard_error: float | None
    """Standard error of `value`; None where it was not estimated."""
    batch_loss: float | None
    """Loss on the batch that curvature is measured on; None with other quantities."""


def read_observations(folder: Path) -> Iterator[Observation]:
    """The lines of a folder's file; none where there is no file.

    Raises:
        RunError: a line is damaged; the message names it.
    """
    path = folder / "observations.jsonl"
    if not path.is_file():
        return
    for line, value in read_json_lines(path):
        try:
            yield Observation(
                preset=str(value["preset"]),
                seed=int(value["seed"]),
                step=int(value["step"]),
                tokens=int(value["tokens"]),
                seconds=number(value["seconds"]),
                quantity=str(value["quantity"]),
                layer=None if value["layer"] is None else int(value["layer"]),
                role=str(value.get("role", "")),
                group=str(value.get("group", "")),
                part=str(value.get("part", "")),
                value=number(value["value"]),
                standard_error=_maybe(value.get("standard_error")),
                batch_loss=_maybe(value.get("batch_loss")),
            )
        except KeyError as error:
            raise damaged(path, line, f"{error.args[0]} is missing") from error
        except (TypeError, ValueError) as error:
            raise damaged(path, line, str(error)) from error


def _maybe(value: object) -> float | None:
    return None if value is None else number(value)
