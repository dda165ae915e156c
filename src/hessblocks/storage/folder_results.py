"""Read a run folder as typed, frozen objects; results that are missing are listed."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage import tables
from hessblocks.storage.config import Settings, read_environment, read_settings, run_path
from hessblocks.storage.files import finite, read_object, refuse_links, write_json

TUNING, REFERENCE = "tuning.json", "reference.json"
Tried = Mapping[str, Mapping[float, float]]
"""Block → learning rate → last validation loss in nats per token; infinite if the run diverged."""
Measured = TypeVar("Measured", tables.Metric, tables.ResultRow, tables.Observation)


@dataclass(frozen=True, kw_only=True)
class FolderResults:
    """Contents of a run folder of one run or of a comparison."""

    folder: Path
    """Run folder."""
    settings: Settings
    """Settings of the command, from config.json."""
    environment: Mapping[str, Any]
    """Versions and hardware; empty if environment.json is missing."""
    metrics: tuple[tables.Metric, ...]
    """Losses along training; the last line of a step that was written twice (after a resume)."""
    measurements: tuple[tables.ResultRow, ...]
    """Rows of results.csv."""
    observations: tuple[tables.Observation, ...] = ()
    """Gains, signal and curvature measured along training."""
    reference: float | None = None
    """Loss of a bigram table on the same windows, nats per token."""
    tried: Tried = field(default_factory=dict)
    """Losses of a search for learning rates; empty without a search."""
    missing: tuple[str, ...]
    """Requested results that are missing, one sentence each."""

    @property
    def rates(self) -> dict[str, float]:
        """Block → peak learning rate; the best rate if rates were searched."""
        shared = self.settings.section("training").get("learning_rate")
        usual = {} if shared is None else dict.fromkeys(self.settings.presets, float(shared))
        return usual | {
            name: min(losses, key=lambda rate: losses[rate])
            for name, losses in self.tried.items()
            if losses
        }

    @property
    def presets(self) -> tuple[str, ...]:
        """List the blocks of the settings, then other blocks that have values."""
        names = [row.preset for row in self.measurements]
        names += [row.preset for row in self.metrics]
        return tuple(dict.fromkeys([*self.settings.presets, *names]))

    def select(self, quantity: str, **wanted: object) -> tuple[tables.ResultRow, ...]:
        """Select the rows of one quantity whose fields have the given values."""
        return tuple(
            row
            for row in self.measurements
            if row.quantity == quantity
            and all(getattr(row, field) == value for field, value in wanted.items())
        )


def load_results(folder: AnyPath) -> FolderResults:
    """Read the run folder of one run or of a comparison.

    Values that are not yet in the tables of a comparison are read from its runs
    (`runs/<preset>-seed<k>/`).

    Args:
        folder: folder with a config.json.

    Returns:
        The contents of the folder, and a list of missing results.

    Raises:
        ArgumentError: `folder` is not a run folder, or it contains a link.
        RunError: a file is damaged; the message names file and line.
    """
    folder = Path(folder)
    config = folder / "config.json"
    refuse_links(folder)
    if not config.is_file():
        raise ArgumentError(
            f"{folder}: expected a run folder with a config.json; give the --out of a finished "
            "or started command."
        )
    settings, environment = read_settings(config), read_environment(folder)
    runs = product(settings.presets, settings.seeds)
    folders = [folder, *sorted(run_path(folder, preset, seed) for preset, seed in runs)]
    losses = _gather(tables.read_typed(tables.Metric, path / "metrics.jsonl") for path in folders)
    metrics = {(m.preset, m.seed, m.split, m.step): m for m in losses}
    measurements = tuple(_gather(tables.read_results(path / "results.csv") for path in folders))
    observed = _gather(
        tables.read_typed(tables.Observation, path / "observations.jsonl") for path in folders
    )
    return FolderResults(
        folder=folder,
        settings=settings,
        environment=environment,
        metrics=tuple(metrics.values()),
        measurements=measurements,
        observations=tuple(observed),
        reference=read_reference(folder),
        tried=read_tuning(folder),
        missing=tuple(_missing(settings, environment, metrics.values(), measurements)),
    )


def _gather(folders: Iterable[Iterable[Measured]]) -> Iterator[Measured]:
    """Yield the rows of the first folder, then rows of other folders whose runs it lacks."""
    rest = iter(folders)
    first = list(next(rest))
    yield from first
    runs = {(row.preset, row.seed) for row in first}
    for rows in rest:
        yield from (row for row in rows if (row.preset, row.seed) not in runs)


def _missing(
    settings: Settings,
    environment: Mapping[str, Any],
    metrics: Iterable[tables.Metric],
    measurements: Sequence[tables.ResultRow],
) -> Iterator[str]:
    if not environment:
        yield "environment.json is missing: versions and hardware are unknown."
    for row in measurements:
        if not math.isfinite(row.value) and row.quantity != "loss":
            where = " ".join(word for word in (row.stage, row.part, row.group) if word)
            quantity = f"{row.quantity}{f' ({where})' if where else ''}"
            run = f"{row.preset}, seed {row.seed}"
            yield f"{run}: {quantity} is {row.value}, not a number, and left out."
    wants_curvature = settings.values.get("curvature", {}) is not None
    begun = {(row.preset, row.seed) for row in metrics}
    trained = {(row.preset, row.seed) for row in measurements if tables.is_trained([row])}
    mapped = {(r.preset, r.seed, r.stage) for r in measurements if r.quantity == tables.NORM}
    for preset, seed in product(settings.presets, settings.seeds):
        run = f"{preset}, seed {seed}"
        if (preset, seed) not in trained:
            yield f"{run}: {'not finished' if (preset, seed) in begun else 'not started'}."
        for stage, words in zip(tables.STAGES, ("before", "after"), strict=True):
            if wants_curvature and (preset, seed, stage) not in mapped:
                yield f"{run}: no curvature {words} training."


def write_tuning(folder: Path, seed: int, tried: Tried) -> None:
    """Write all losses of a search for learning rates to tuning.json.

    Args:
        folder: folder of the comparison.
        seed: seed of the runs.
        tried: losses by block and rate.

    Raises:
        RunError: the file cannot be written.
    """
    entries = {
        name: {
            "best": min(losses, key=lambda rate: losses[rate]),
            "losses": finite([*losses.items()]),
        }
        for name, losses in tried.items()
        if losses
    }
    write_json(folder / TUNING, {"seed": seed, "blocks": entries})


def read_tuning(folder: Path) -> dict[str, dict[float, float]]:
    """Read the losses of a search for learning rates; empty if there was no search.

    Args:
        folder: folder of a comparison.

    Returns:
        Block → rate → loss in nats per token; infinite if the run diverged.

    Raises:
        RunError: the file is damaged.
    """
    if not (path := folder / TUNING).exists():
        return {}
    try:
        return {
            str(name): {
                _above_0(rate): math.inf if loss is None else float(loss)
                for rate, loss in entry["losses"]
            }
            for name, entry in read_object(path)["blocks"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path) from error


def read_reference(folder: Path) -> float | None:
    """Read the loss of the bigram table from reference.json.

    Args:
        folder: folder of a run or a comparison.

    Returns:
        Loss in nats per token; None if it was not computed.

    Raises:
        RunError: the file is damaged.
    """
    if not (path := folder / REFERENCE).exists():
        return None
    try:
        return _above_0(read_object(path)["loss"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error


def _above_0(value: Any) -> float:
    if 0 < (number := float(value)) < math.inf:
        return number
    raise ValueError


def _damaged(path: Path) -> RunError:
    return RunError(f"{path}: damaged; remove it and run the command again.")
