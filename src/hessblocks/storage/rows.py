"""results.csv of a run, and that of `hessblocks signal`: one measured value a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hessblocks.conventions import PARTS
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
    """parameters, flops (of one update), tokens_per_second, peak_memory (bytes of an update), training_time (s), loss or frobenius_norm."""
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
    """Of the value, where it is an estimate."""
    method: str
    """exact, estimate or measured."""


NORM = "frobenius_norm"
STAGES = ("initial", "final")
COLUMNS = columns_of(ResultRow)
STEPS = ("begun", "mapped-initial", "trained", "mapped-final")
"""The steps of a run in the order of their rows."""
SCALARS = {
    "begun": (("parameters", ""), ("flops", "")),
    "trained": (
        ("loss", "initial"),
        ("loss", "final"),
        ("tokens_per_second", ""),
        ("peak_memory", ""),
        ("training_time", ""),
    ),
}
"""Quantity and stage of each row of the steps without parameter groups."""


def write_results(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write the table, whole or not at all, each number with all its digits.

    Raises:
        RunError: the file cannot be written.
    """
    write_table(path, COLUMNS, map(vars, rows))


def read_results(path: Path) -> list[ResultRow]:
    """The table; empty where there is none yet.

    Returns:
        All rows, in the order of the file.

    Raises:
        RunError: the file is damaged; the message names the line.
    """
    return read_table(ResultRow, path)


def step_of(row: ResultRow) -> str:
    """The step of a run that measures the row: one of `STEPS`."""
    if row.quantity == NORM:
        return f"mapped-{row.stage}"
    return "begun" if row.quantity in ("parameters", "flops") else "trained"


def steps_done(rows: Iterable[ResultRow], groups: Iterable[str]) -> set[str]:
    """Which of `STEPS` are recorded whole.

    Args:
        rows: of one run.
        groups: parameter groups that each map measures.

    Returns:
        A part of `STEPS`.
    """
    keys = {(row.quantity, row.stage, row.group, row.part) for row in rows}
    names = list(groups)
    return {step for step in STEPS if _expected(step, names) <= keys}


def is_trained(rows: Iterable[ResultRow]) -> bool:
    """Whether a run's final loss is recorded."""
    return any((row.quantity, row.stage) == ("loss", "final") for row in rows)


def _expected(step: str, groups: Iterable[str]) -> set[tuple[str, str, str, str]]:
    """Quantity, stage, group and part of each row of a step."""
    if step in SCALARS:
        return {(quantity, stage, "", "") for quantity, stage in SCALARS[step]}
    stage = step.removeprefix("mapped-")
    return {(NORM, stage, group, part) for group in groups for part in PARTS}


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
    """Kind of parameter group, of gradients; else empty."""
    value: float
    """In the unit of its quantity; may be infinite."""


def read_signal(path: Path) -> list[SignalRow]:
    """All rows; none where the file is empty.

    Returns:
        Rows in the order of the file.

    Raises:
        RunError: the file is missing or damaged.
    """
    return read_table(SignalRow, path) if read_text(path) else []
