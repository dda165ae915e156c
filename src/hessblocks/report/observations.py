"""observations.jsonl: gains, signal and curvature along training, read from a run folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hessblocks.report.reading import damaged, number, read_json_lines


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
