"""results.csv: one measured value a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hessblocks.errors import RunError
from hessblocks.files import write_text


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured value."""

    preset: str
    """Name of the block."""
    seed: int
    """Random seed of the run."""
    stage: str = ""
    """initial, final, or empty where neither applies."""
    quantity: str
    """parameters, tokens_per_second, peak_memory (bytes), training_time (s), loss or frobenius_norm."""
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


COLUMNS = tuple(field.name for field in fields(Row))


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the table, whole or not at all, each number with all its digits.

    Raises:
        RunError: the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: "" if value is None else value for name, value in asdict(row).items()}
        for row in rows
    )
    write_text(path, text.getvalue())


def read_rows(path: Path) -> list[Row]:
    """The table; empty where there is none yet.

    Raises:
        RunError: the file is damaged.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [_row(values) for values in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path}: damaged; remove it and run again to compute its values once more."
        ) from error


def stages_done(rows: Sequence[Row]) -> set[str]:
    """Which steps of a run are recorded: begun, trained, mapped-initial, mapped-final."""
    names = {
        ("parameters", ""): "begun",
        ("loss", "final"): "trained",
        ("frobenius_norm", "initial"): "mapped-initial",
        ("frobenius_norm", "final"): "mapped-final",
    }
    keys = {(row.quantity, row.stage) for row in rows}
    return {name for key, name in names.items() if key in keys}


def _row(values: dict[str, str]) -> Row:
    if len(values) != len(COLUMNS) or None in values.values():
        raise ValueError(values)
    return Row(
        preset=values["preset"],
        seed=int(values["seed"]),
        stage=values["stage"],
        quantity=values["quantity"],
        layer=int(values["layer"]) if values["layer"] else None,
        group=values["group"],
        role=values["role"],
        part=values["part"],
        value=float(values["value"]),
        standard_error=float(values["standard_error"]) if values["standard_error"] else None,
        method=values["method"],
    )
