"""Run folders from disk; of a comparison under way, also the runs inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from hessblocks.errors import ArgumentError
from hessblocks.report.observations import Observation, read_observations
from hessblocks.report.reading import damaged, number, read_json_lines, read_object, read_table
from hessblocks.report.results import NORM, STAGES, FolderResults, Measurement, Metric, Settings

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
