"""metrics.jsonl and observations.jsonl: one measured value a line, appended as training goes."""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.errors import RunError
from hessblocks.storage.files import damaged, read_bytes
from hessblocks.storage.identity import SAID, SEAL, State, owner, sealed, state_of
from hessblocks.storage.records import Record, records

Line = dict[str, Any]
LONGEST = 1 << 20
"""Bytes of a line at most."""


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


SHORT = "lacks lines at its end"
"""What is said of a file that was longer once."""


class DamagedLineError(RunError):
    """A line that is not a JSON object."""

    def __init__(self, path: Path, number: int, reason: str, *, ended: bool) -> None:
        """Name file and line (from 1); `ended` says whether the line was written to its end."""
        super().__init__(str(damaged(path, number, reason)))
        self.number = number
        self.ended = ended


def append_line(path: Path, line: Line, of: str) -> None:
    """Add one line with its seal, which follows that of the line before; NaN and infinities become null.

    Args:
        path: the file; its lines end with a line end.
        line: JSON values.
        of: identity of the run.

    Raises:
        RunError: the file cannot be written.
    """
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(sealed(of, finite, last_seal(path))) + "\n")
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror}); free some space and run again."
        ) from error


def last_seal(path: Path) -> str:
    """The seal of the last line; empty where there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LONGEST))
        *_, last = [b"{}", *file.read().splitlines()]
    with contextlib.suppress(ValueError, AttributeError):  # no JSON, or no object
        return str(json.loads(last).get(SEAL, ""))
    return ""


def line_states(path: Path, owners: Collection[str] = ()) -> Iterator[tuple[int, Line, State]]:
    """Each line with its number from 1 and what it is: whole, foreign, edited or unsealed.

    Args:
        path: the file; there are no lines where it is absent.
        owners: identities of the runs whose lines it may hold; none means any. In the file of one run a
            line without a seal after one that has it is edited.

    Raises:
        DamagedLineError: a line is not a JSON object.
    """
    before: dict[str, str] = {}
    for number, line in _numbered(path):
        theirs = owner(line)
        state = state_of(line, owners, before.get(theirs, ""))
        planted = state == "unsealed" and before and len(owners) == 1
        yield number, line, "edited" if planted else state
        if theirs:
            before[theirs] = line[SEAL]


def read_lines(path: Path, of: str | None = None) -> list[Line]:
    """The lines before the first damaged one, as a killed process leaves its last.

    Args:
        path: the file.
        of: identity of the run: lines end before the first one that is edited or of another run, too.

    Returns:
        Names and values of each line; none where there is no file.

    Raises:
        RunError: the file cannot be read.
    """
    lines: list[Line] = []
    with contextlib.suppress(DamagedLineError):
        for _, line, state in line_states(path, (of,) if of else ()):
            if of and state in SAID:
                break
            lines.append(line)
    return lines


def fault_in_lines(path: Path, of: str, *, torn: bool) -> str:
    """What is wrong with the first line that is damaged, edited or of another run; empty where none is.

    Args:
        path: the file.
        of: identity of the run.
        torn: whether a last line without an end, as a killed process leaves it, counts.

    Returns:
        The end of a sentence that begins with the file's name.
    """
    try:
        for number, _, state in line_states(path, (of,)):
            if state in SAID:
                return f"its line {number} {SAID[state]}"
    except DamagedLineError as error:
        if error.ended or torn:
            return f"its line {error.number} is damaged"
    return ""


def read_finished_lines(path: Path, of: str, ended: str | None = None) -> list[Line]:
    """All lines of a run that is trained.

    Args:
        path: the file.
        of: identity of the run.
        ended: seal of its last line when training was over; empty or None where that was not noted.

    Returns:
        Names and values of each line.

    Raises:
        RunError: the file is absent, lacks lines, or a line of it is damaged, edited or of another run.
    """
    lines = read_lines(path, of)
    short = f"it {SHORT}" if ended and last_seal(path) != ended else ""
    if what := fault_in_lines(path, of, torn=True) or ("" if lines else "absent or empty") or short:
        raise RunError(
            f"{path}: {what}, though the run is trained; remove {path.parent} and run again to "
            "train it once more."
        )
    return lines


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
        yield from records(kind, path, _numbered(path))
    except DamagedLineError as error:
        if error.ended:
            raise
        warnings.warn(f"{path}: its last line is half-written and left out.", stacklevel=2)


def _numbered(path: Path) -> Iterator[tuple[int, Line]]:
    """Each line with its number from 1; none where there is no file."""
    text = read_bytes(path) if path.exists() else b""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode())
        except UnicodeDecodeError as error:
            raise DamagedLineError(path, number, "not UTF-8 text", ended=True) from error
        except json.JSONDecodeError as error:
            ended, reason = line.endswith(b"\n"), f"not JSON ({error.msg})"
            raise DamagedLineError(path, number, reason, ended=ended) from error
        if not isinstance(value, dict):
            raise DamagedLineError(path, number, "expected a JSON object", ended=True)
        yield number, value
