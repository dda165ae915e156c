"""metrics.jsonl and observations.jsonl: one measured value a line, appended as training goes."""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.errors import RunError
from hessblocks.storage.files import append, damaged, numbered, parse_json
from hessblocks.storage.records import Record, records

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
    """What first was not finite, where the run diverged at this step."""
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
"""What a line of each file says at least."""
SHORT = "lacks lines at its end"
"""What is said of a file that was longer once."""


class DamagedLineError(RunError):
    """A line that is not a JSON object, or lacks what every line of its file says."""

    def __init__(self, path: Path, number: int, reason: str, *, ended: bool) -> None:
        """Name file and line (from 1); `ended` says whether the line was written to its end."""
        super().__init__(str(damaged(path, number, reason)))
        self.number = number
        self.ended = ended


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
    """The lines before the first damaged one, as a killed process leaves its last.

    Args:
        path: the file.

    Returns:
        Names and values of each line; none where there is no file.

    Raises:
        RunError: the file cannot be read.
    """
    lines: list[Line] = []
    with contextlib.suppress(DamagedLineError):
        for _, line in _whole(path):
            lines.append(line)
    return lines


def fault_in_lines(path: Path, *, torn: bool) -> str:
    """What is wrong with the first damaged line; empty where none is.

    Args:
        path: the file.
        torn: whether a last line without an end, as a killed process leaves it, counts.

    Returns:
        The end of a sentence that begins with the file's name.
    """
    try:
        for _ in _whole(path):
            pass
    except DamagedLineError as error:
        if error.ended or torn:
            return f"its line {error.number} is damaged"
    return ""


def fault_in_finished_lines(path: Path, count: object = None) -> str:
    """What is wrong with the lines of a run that is trained; empty where nothing is.

    Args:
        path: the file.
        count: lines that it had when training was over; anything but a number where that was not noted.

    Returns:
        The end of a sentence that begins with the file's name.
    """
    if fault := fault_in_lines(path, torn=True):
        return fault
    lines = read_lines(path)
    if not lines:
        return "absent or empty"
    return f"it {SHORT}" if isinstance(count, int) and len(lines) < count else ""


def read_finished_lines(path: Path, count: object = None) -> list[Line]:
    """All lines of a run that is trained.

    Args:
        path: the file.
        count: as `fault_in_finished_lines` takes it.

    Returns:
        Names and values of each line.

    Raises:
        RunError: the file is absent, lacks lines, or a line of it is damaged.
    """
    if fault := fault_in_finished_lines(path, count):
        raise RunError(
            f"{path}: {fault}, though the run is trained; remove {path.parent} and run again to "
            "train it once more."
        )
    return read_lines(path)


def read_metrics(folder: Path) -> Iterator[Metric]:
    """The lines of metrics.jsonl; none where there is no file.

    A last line that has no end, as a killed run leaves it, is left out with a warning.

    Returns:
        An iterator over the losses, in the order of the file.

    Raises:
        RunError: a line is damaged; the message names it.
    """
    return _read(Metric, folder / "metrics.jsonl")


def read_observations(folder: Path) -> Iterator[Observation]:
    """The lines of observations.jsonl, as `read_metrics` reads those of losses.

    Returns:
        An iterator over the values, in the order of the file.

    Raises:
        RunError: a line is damaged; the message names it.
    """
    return _read(Observation, folder / "observations.jsonl")


def _read(kind: type[Record], path: Path) -> Iterator[Record]:
    try:
        yield from records(kind, path, _parsed(path))
    except DamagedLineError as error:
        if error.ended:
            raise
        warnings.warn(f"{path}: its last line is half-written and left out.", stacklevel=2)


def _whole(path: Path) -> Iterator[tuple[int, Line]]:
    """Each line with its number; one that lacks what every line of the file says is damaged."""
    kind = KINDS.get(path.name)
    for number, line in _parsed(path):
        try:
            if kind:
                next(records(kind, path, iter([(number, line)])))
        except RunError as error:
            raise DamagedLineError(path, number, str(error), ended=True) from error
        yield number, line


def _parsed(path: Path) -> Iterator[tuple[int, Line]]:
    """Each line with its number from 1."""
    for number, line in numbered(path):
        try:
            value = parse_json(line.decode())
        except UnicodeDecodeError as error:
            raise DamagedLineError(path, number, "not UTF-8 text", ended=True) from error
        except json.JSONDecodeError as error:
            ended, reason = line.endswith(b"\n"), f"not JSON ({error.msg})"
            raise DamagedLineError(path, number, reason, ended=ended) from error
        if not isinstance(value, dict):
            raise DamagedLineError(path, number, "expected a JSON object", ended=True)
        yield number, value
