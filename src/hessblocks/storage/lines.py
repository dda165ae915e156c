"""Append and read metrics.jsonl and observations.jsonl: one measured value per line."""

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.errors import RunError
from hessblocks.storage.files import append, damaged, numbered, parse_json
from hessblocks.storage.tables import RowType, records
from hessblocks.typed import LINES

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
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }
    append(path, (json.dumps(finite) + "\n").encode())


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
