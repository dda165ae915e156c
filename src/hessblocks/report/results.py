"""A run folder as typed, frozen objects; what is not there yet is listed, not guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.report.observations import Observation

STAGES = ("initial", "final")
NORM = "frobenius_norm"


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
class Measurement:
    """One row of results.csv: a measured value."""

    preset: str
    """Name of the block."""
    seed: int
    """Random seed of the run."""
    stage: str
    """`initial`, `final`, or empty where neither applies."""
    quantity: str
    """What was measured, such as `parameters` or `frobenius_norm`."""
    layer: int | None
    """Layer from 0; None outside the layers."""
    group: str
    """Parameter group, such as `layers.0.attention.query`; empty for a whole model."""
    role: str
    """Kind of parameter group, such as `query`; empty for a whole model."""
    part: str
    """`outer` (H_o), `functional` (H_f), `full` (H), or empty."""
    value: float
    """The value, in the unit of its quantity."""
    standard_error: float | None
    """Standard error of `value`; None where it was not estimated."""
    method: str
    """`exact`, `estimate` or `measured`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """config.json: what was asked for."""

    command: str
    """The command that made the folder, such as `demo`."""
    presets: tuple[str, ...]
    """The blocks that were asked for, in their order."""
    seeds: tuple[int, ...]
    """The random seeds that were asked for."""
    values: Mapping[str, Any]
    """The whole file."""

    def section(self, name: str) -> Mapping[str, Any]:
        """One section of the file (`model`, `data`, `training`, `curvature`); empty if absent."""
        section = self.values.get(name)
        return section if isinstance(section, dict) else {}


@dataclass(frozen=True, kw_only=True)
class FolderResults:
    """Everything that a run folder holds."""

    folder: Path
    """The run folder."""
    settings: Settings
    """What was asked for."""
    environment: Mapping[str, Any]
    """Versions and hardware; empty where environment.json is missing."""
    metrics: tuple[Metric, ...]
    """Losses on the way; of a step written twice (after a resume) the last."""
    measurements: tuple[Measurement, ...]
    """Measured values."""
    observations: tuple[Observation, ...] = ()
    """Values measured along training, besides losses."""
    missing: tuple[str, ...]
    """What was asked for and is not there, one sentence each."""

    @property
    def presets(self) -> tuple[str, ...]:
        """The blocks that were asked for, then any other that has values."""
        found = [row.preset for row in self.measurements]
        found += [row.preset for row in self.metrics]
        return tuple(dict.fromkeys([*self.settings.presets, *found]))

    def select(self, quantity: str, **wanted: object) -> tuple[Measurement, ...]:
        """The rows of one quantity whose fields have the wanted values."""
        return tuple(
            row
            for row in self.measurements
            if row.quantity == quantity
            and all(getattr(row, field) == value for field, value in wanted.items())
        )
