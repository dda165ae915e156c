"""Read and write results.csv of a run, and that of `hessblocks signal`: one value per row."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hessblocks.storage.files import read_text
from hessblocks.storage.tables import columns_of, read_table, write_table


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
