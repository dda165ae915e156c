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
from hessblocks.storage.tables import Record, records

Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One line of metrics.jsonl: a loss on the way."""

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
    """Pace since the line before; None with losses on held-out text."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One line of observations.jsonl: a value measured on the way."""

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
    role: str = ""
    """Kind of parameter group; may be empty."""
    group: str = ""
    """Parameter group; may be empty."""
    part: str = ""
    """`outer` (H_o), `functional` (H_f), `full` (H), or empty."""
    value: float
    """The value, in the unit of its quantity."""
    standard_error: float | None = None
    """Standard error of `value`; None where it was not estimated."""
    batch_loss: float | None = None
    """Loss on the batch that curvature is measured on; None with other quantities."""


KINDS: dict[str, type[Any]] = {"metrics.jsonl": Metric, "observations.jsonl": Observation}
"""Fields that a line of each file holds at least."""


def append_line(path: Path, line: Line) -> None:
    """Add one line; NaN and infinities become null.

    Args:
        path: the file; its lines end with a line end.
        line: JSON values.

    Raises:
        RunError: the file cannot be written.
    """
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }
    append(path, (json.dumps(finite) + "\n").encode())


def read_lines(path: Path) -> list[Line]:
    """Read the lines before the first damaged one, as a killed process leaves its last.

    Returns:
        Names and values of each line; none where there is no file.

    Raises:
        RunError: the file cannot be read.
    """
    return _before_damage(path)[0]


def fault_in_lines(path: Path, *, torn: bool) -> str:
    """Describe the fault in the first damaged line; empty if there is none.

    Args:
        path: the file.
        torn: whether a last line without an end, as a killed process leaves it, counts.

    Returns:
        The end of a sentence that begins with the file's name.
    """
    _, number, bad = _before_damage(path)
    return f"its line {number} is damaged" if bad.endswith(b"\n") or (bad and torn) else ""


def fault_in_finished_lines(path: Path) -> str:
    """Describe the fault in the lines of a trained run; empty if there is none.

    Args:
        path: the file.

    Returns:
        The end of a sentence that begins with the file's name.
    """
    return fault_in_lines(path, torn=True) or ("" if read_lines(path) else "absent or empty")


def read_finished_lines(path: Path) -> list[Line]:
    """Read all lines of a run that is trained.

    Args:
        path: the file.

    Returns:
        Names and values of each line.

    Raises:
        RunError: the file is absent, or a line of it is damaged.
    """
    if fault := fault_in_finished_lines(path):
        raise RunError(
            f"{path}: {fault}, though the run is trained; remove {path.parent} and run again to "
            "train it once more."
        )
    return read_lines(path)


def read_typed(kind: type[Record], path: Path) -> Iterator[Record]:
    """Read the lines of a file as objects; none where there is no file.

    A last line that has no end, as a killed run leaves it, is left out with a warning.

    Args:
        kind: `Metric` or `Observation`.
        path: the file.

    Raises:
        RunError: a line is damaged; the message names it.
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
        yield from records(kind, path, iter([(number, value)]))


def _before_damage(path: Path) -> tuple[list[Line], int, bytes]:
    """Read the lines before the first damaged one, and that one's number and text."""
    lines: list[Line] = []
    for number, line in numbered(path):
        try:
            value = parse_json(line.decode())
            next(records(KINDS[path.name], path, iter([(number, value)])))
        except (ValueError, RunError):
            return lines, number, line
        lines.append(value)
    return lines, 0, b""
