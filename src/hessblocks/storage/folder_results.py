"""A run folder as typed, frozen objects; what is not there yet is listed, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hessblocks.errors import ArgumentError
from hessblocks.storage.lines import (
    Observation,
    damaged,
    number,
    read_json_lines,
    read_object,
    read_observations,
    read_table,
)

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


Row = TypeVar("Row", Metric, Measurement, Observation)

COLUMNS = (
    "preset",
    "seed",
    "stage",
    "quantity",
    "layer",
    "group",
    "role",
    "part",
    "value",
    "standard_error",
    "method",
)


def load_results(folder: Path) -> FolderResults:
    """Read the run folder of one run or of a comparison.

    Values that the folder itself does not hold yet are taken from the runs inside it
    (`runs/<preset>-seed<k>/`).

    Args:
        folder: a folder with config.json.

    Returns:
        What the folder holds, and what is missing from it.

    Raises:
        ArgumentError: `folder` is not a run folder.
        RunError: a file is damaged; the message names file and line.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise ArgumentError(
            f"{folder}: expected a run folder with a config.json; give the --out of a finished "
            "or started command."
        )
    settings = _settings(config)
    environment = folder / "environment.json"
    metrics = tuple(
        {(m.preset, m.seed, m.split, m.step): m for m in _gather(folder, _metrics)}.values()
    )
    measurements = tuple(_gather(folder, _measurements))
    return FolderResults(
        folder=folder,
        settings=settings,
        environment=read_object(environment) if environment.is_file() else {},
        metrics=metrics,
        measurements=measurements,
        observations=tuple(_gather(folder, read_observations)),
        missing=tuple(_missing(settings, environment.is_file(), metrics, measurements)),
    )


def _settings(path: Path) -> Settings:
    values = read_object(path)
    presets = values.get("presets", [values["preset"]] if "preset" in values else [])
    seeds = values.get("seeds", [values["seed"]] if "seed" in values else [])
    if not isinstance(presets, list) or not isinstance(seeds, list):
        raise damaged(path, None, "expected lists under `presets` and `seeds`")
    try:
        return Settings(
            command=str(values.get("command", "")),
            presets=tuple(str(preset) for preset in presets),
            seeds=tuple(int(seed) for seed in seeds),
            values=values,
        )
    except (TypeError, ValueError) as error:
        raise damaged(path, None, f"`seeds`: expected whole numbers, got {seeds!r}") from error


def _gather(folder: Path, read: Callable[[Path], Iterator[Row]]) -> Iterator[Row]:
    """Rows of the folder, then those of runs that the folder's own file does not have yet."""
    own = list(read(folder))
    known = {(row.preset, row.seed) for row in own}
    yield from own
    for run in sorted(folder.glob("runs/*")):
        yield from (row for row in read(run) if (row.preset, row.seed) not in known)


def _metrics(folder: Path) -> Iterator[Metric]:
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return
    for line, value in read_json_lines(path):
        try:
            yield Metric(
                preset=str(value["preset"]),
                seed=int(value["seed"]),
                split=str(value["split"]),
                step=int(value["step"]),
                seconds=number(value["seconds"]),
                loss=number(value["loss"]),
                tokens=int(value["tokens"]) if "tokens" in value else None,
                diverged=str(value.get("diverged", "")),
            )
        except KeyError as error:
            raise damaged(path, line, f"{error.args[0]} is missing") from error
        except (TypeError, ValueError) as error:
            raise damaged(path, line, str(error)) from error


def _measurements(folder: Path) -> Iterator[Measurement]:
    path = folder / "results.csv"
    if not path.is_file():
        return
    for line, row in read_table(path, COLUMNS):
        try:
            yield Measurement(
                preset=row["preset"],
                seed=int(row["seed"]),
                stage=row["stage"],
                quantity=row["quantity"],
                layer=int(row["layer"]) if row["layer"] else None,
                group=row["group"],
                role=row["role"],
                part=row["part"],
                value=number(row["value"]),
                standard_error=number(row["standard_error"]) if row["standard_error"] else None,
                method=row["method"],
            )
        except ValueError as error:
            raise damaged(path, line, str(error)) from error


def _missing(
    settings: Settings,
    environment: bool,
    metrics: tuple[Metric, ...],
    measurements: tuple[Measurement, ...],
) -> Iterator[str]:
    if not environment:
        yield "environment.json is missing: versions and hardware are unknown."
    asked = settings.values.get("curvature", {}) is not None
    begun = {(row.preset, row.seed) for row in metrics}
    trained = {
        (r.preset, r.seed) for r in measurements if (r.quantity, r.stage) == ("loss", "final")
    }
    mapped = {(r.preset, r.seed, r.stage) for r in measurements if r.quantity == NORM}
    for preset in settings.presets:
        for seed in settings.seeds:
            run = f"{preset}, seed {seed}"
            if (preset, seed) not in trained:
                yield f"{run}: {'not finished' if (preset, seed) in begun else 'not started'}."
            for stage, words in zip(STAGES, ("before", "after"), strict=True):
                if asked and (preset, seed, stage) not in mapped:
                    yield f"{run}: no curvature {words} training."
