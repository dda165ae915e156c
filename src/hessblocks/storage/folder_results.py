"""Read a run folder as typed, frozen objects; what is not there yet is listed, not guessed."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.config import Settings, read_environment, read_settings, run_path
from hessblocks.storage.files import read_object, refuse_links, write_json
from hessblocks.storage.lines import Metric, Observation, read_typed
from hessblocks.storage.tables import NORM, STAGES, ResultRow, is_trained, read_results

TUNING, REFERENCE = "tuning.json", "reference.json"
Tried = Mapping[str, Mapping[float, float]]
"""Block → rate → last validation loss, infinite where the run diverged."""
Measured = TypeVar("Measured", Metric, ResultRow, Observation)


@dataclass(frozen=True, kw_only=True)
class FolderResults:
    """Everything that a run folder holds."""

    folder: Path
    """The run folder."""
    settings: Settings
    """Settings that were asked for."""
    environment: Mapping[str, Any]
    """Versions and hardware; empty where environment.json is missing."""
    metrics: tuple[Metric, ...]
    """Losses on the way; of a step written twice (after a resume) the last."""
    measurements: tuple[ResultRow, ...]
    """Measured values."""
    observations: tuple[Observation, ...] = ()
    """Values measured along training, besides losses."""
    reference: float | None = None
    """Loss of the table of pairs on the same windows, in nats per token."""
    tried: Tried = field(default_factory=dict)
    """What a search of rates found; empty where there was none."""
    missing: tuple[str, ...]
    """Results that were asked for and are missing, one sentence each."""

    @property
    def rates(self) -> dict[str, float]:
        """Peak learning rate of each block: its best where it was searched."""
        shared = self.settings.section("training").get("learning_rate")
        usual = {} if shared is None else dict.fromkeys(self.settings.presets, float(shared))
        return usual | {
            name: min(own, key=lambda rate: own[rate]) for name, own in self.tried.items() if own
        }

    @property
    def presets(self) -> tuple[str, ...]:
        """List the blocks that were asked for, then any other that has values."""
        found = [row.preset for row in self.measurements]
        found += [row.preset for row in self.metrics]
        return tuple(dict.fromkeys([*self.settings.presets, *found]))

    def select(self, quantity: str, **wanted: object) -> tuple[ResultRow, ...]:
        """Choose the rows of one quantity whose fields have the wanted values."""
        return tuple(
            row
            for row in self.measurements
            if row.quantity == quantity
            and all(getattr(row, field) == value for field, value in wanted.items())
        )


def load_results(folder: AnyPath) -> FolderResults:
    """Read the run folder of one run or of a comparison.

    Values that the folder itself does not hold yet are taken from the runs inside it
    (`runs/<preset>-seed<k>/`).

    Args:
        folder: a folder with config.json.

    Returns:
        What the folder holds, and what is missing from it.

    Raises:
        ArgumentError: `folder` is not a run folder, or something in it is a link.
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
    runs = [
        run_path(folder, preset, seed) for seed in settings.seeds for preset in settings.presets
    ]
    folders = [folder, *sorted(runs)]
    losses = _gather(read_typed(Metric, one / "metrics.jsonl") for one in folders)
    metrics = {(m.preset, m.seed, m.split, m.step): m for m in losses}
    measurements = tuple(_gather(read_results(one / "results.csv") for one in folders))
    observed = _gather(read_typed(Observation, one / "observations.jsonl") for one in folders)
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
    """Yield the rows of the first folder, then those of runs that it does not have yet."""
    each = iter(folders)
    whole = list(next(each))
    yield from whole
    known = {(row.preset, row.seed) for row in whole}
    for rows in each:
        yield from (row for row in rows if (row.preset, row.seed) not in known)


def _missing(
    settings: Settings,
    environment: Mapping[str, Any],
    metrics: Iterable[Metric],
    measurements: Sequence[ResultRow],
) -> Iterator[str]:
    if not environment:
        yield "environment.json is missing: versions and hardware are unknown."
    for row in measurements:
        if not math.isfinite(row.value) and row.quantity != "loss":
            place = " ".join(word for word in (row.stage, row.part, row.group) if word)
            said = f"{row.quantity}{f' ({place})' if place else ''}"
            number = f"{row.value}, not a number, and left out"
            yield f"{row.preset}, seed {row.seed}: {said} is {number}."
    asked = settings.values.get("curvature", {}) is not None
    begun = {(row.preset, row.seed) for row in metrics}
    trained = {(row.preset, row.seed) for row in measurements if is_trained([row])}
    mapped = {(r.preset, r.seed, r.stage) for r in measurements if r.quantity == NORM}
    for preset in settings.presets:
        for seed in settings.seeds:
            run = f"{preset}, seed {seed}"
            if (preset, seed) not in trained:
                yield f"{run}: {'not finished' if (preset, seed) in begun else 'not started'}."
            for stage, words in zip(STAGES, ("before", "after"), strict=True):
                if asked and (preset, seed, stage) not in mapped:
                    yield f"{run}: no curvature {words} training."


def write_tuning(folder: Path, seed: int, tried: Tried) -> None:
    """Write every loss of a search of rates.

    Args:
        folder: of the comparison.
        seed: of the runs.
        tried: losses by block and rate.

    Raises:
        RunError: it cannot be written.
    """
    losses = {
        name: {
            "best": min(own, key=lambda rate: own[rate]),
            "losses": [[rate, own[rate] if math.isfinite(own[rate]) else None] for rate in own],
        }
        for name, own in tried.items()
        if own
    }
    write_json(folder / TUNING, {"seed": seed, "blocks": losses})


def read_tuning(folder: Path) -> dict[str, dict[float, float]]:
    """Read the losses of a search of rates; empty where there was none.

    Args:
        folder: of a comparison.

    Returns:
        Block → rate → loss, infinite where the run diverged.

    Raises:
        RunError: the file is damaged.
    """
    if not (path := folder / TUNING).exists():
        return {}
    try:
        return {
            str(name): {
                _above_0(rate): math.inf if loss is None else float(loss)
                for rate, loss in own["losses"]
            }
            for name, own in read_object(path)["blocks"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path) from error


def read_reference(folder: Path) -> float | None:
    """Read the loss of the table of pairs, in nats per token; None where it was not computed.

    Args:
        folder: of a run or a comparison.

    Returns:
        The loss.

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
    if 0 < (found := float(value)) < math.inf:
        return found
    raise ValueError


def _damaged(path: Path) -> RunError:
    return RunError(f"{path}: damaged; remove it and run the command again.")
