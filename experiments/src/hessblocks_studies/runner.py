"""Run studies: measure missing points and write results."""

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage import Row, held, write_json
from hessblocks_studies import engine
from hessblocks_studies.catalogue import find
from hessblocks_studies.folders import remember


class FailedPointsError(RunError):
    """Error for points that could not be measured; all other points are stored."""


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Results of a finished study."""

    name: str
    """Name of the study."""
    folder: Path
    """Folder: config.json, environment.json, points.jsonl and the three files of `outputs`."""
    rows: tuple[Row, ...]
    """All measurements."""
    checks: tuple[engine.Check, ...]
    """Checks of published facts against our measurements."""
    points: int
    """Number of points."""
    measured: int
    """Number of points that this call measured; the others were stored already."""
    retried: int
    """Number of restarts after a worker died."""
    seconds: float
    """Duration of all points, summed over workers and calls, in seconds."""


def run_study(name: str, *, out: str | Path, **options: Any) -> StudyResult:
    """Reproduce one figure or table; see `run_studies` for the options.

    Args:
        name: one of `hessblocks_studies.names()`.
        out: folder; the study is written to a subfolder with its name.
        **options: scale, seeds, workers, ray, reporter.

    Returns:
        The measurements and the checks of published facts.

    Raises:
        ArgumentError: see `run_studies`.
        RunError: see `run_studies`.
    """
    (result,) = run_studies([name], out=out, **options)
    return result


def run_studies(
    names: Sequence[str],
    *,
    out: str | Path,
    scale: str = "laptop",
    seeds: int | None = None,
    workers: int | None = None,
    ray: str | None = None,
    reporter: engine.Reporter | None = None,
) -> list[StudyResult]:
    """Reproduce figures and tables; continue an earlier call with the same `out`.

    Args:
        names: some of `hessblocks_studies.names()`.
        out: folder; each study is written to a subfolder with its name.
        scale: smoke (seconds), laptop (minutes) or paper (the published settings).
        seeds: repetitions; None means the scale's default.
        workers: processes on this machine; None measures in this process.
        ray: address of a Ray cluster; not allowed with `workers`.
        reporter: receives the progress after each point.

    Returns:
        One result per study, in the order of `names`.

    Raises:
        ArgumentError: unknown study or scale, seeds or workers below 1, both workers and ray.
        FailedPointsError: a point failed. All other points are stored, all other studies finished.
        RunError: another process uses `out`, a newer version wrote it, or no cluster answers.
    """
    if seeds is not None and seeds < 1:
        raise ArgumentError(f"seeds: expected at least 1, got {seeds}")
    chosen = [(study, study.points(scale, seeds)) for study in map(find, names)]
    results, failures = [], []
    with held(Path(out)), contextlib.closing(engine.Executor(workers, ray)) as where:
        remember(Path(out), names, scale, seeds)
        for study, points in chosen:
            config = {"command": "reproduce", "study": study.name, "scale": scale, "seeds": seeds}
            try:
                results.append(
                    measure_study(
                        study,
                        points,
                        folder=Path(out) / study.name,
                        config=config,
                        where=where,
                        reporter=reporter or engine.Silent(),
                    )
                )
            except RunError as error:
                failures.append(str(error))
    if failures:
        raise FailedPointsError(" ".join(dict.fromkeys(failures)))
    return results


def measure_study(
    study: engine.Study[Any],
    points: Sequence[engine.Point],
    *,
    folder: Path,
    config: Mapping[str, object],
    where: engine.Executor,
    reporter: engine.Reporter,
) -> StudyResult:
    """Measure the missing points of a study into `folder`, and write all its files.

    Args:
        study: study to measure.
        points: all points of the study at this scale.
        folder: folder of this study only.
        config: content of config.json.
        where: executor that measures.
        reporter: receives the progress after each point.

    Returns:
        The results of the study with all rows.

    Raises:
        RunError: another process uses the folder, a newer version wrote it, or a point failed.
    """
    # imports the Trainer; not needed in workers
    from hessblocks.storage import keep_environment, warn_of_another_environment

    measured = 0
    failures: list[engine.Outcome] = []
    with engine.opened(folder) as store:
        points = engine.grown(study, points, store)
        missing = engine.Stored.of(store, points).missing
        _warn_of_a_narrower_request(study.name, folder, len(points), store)
        write_json(folder / "config.json", {**config, "points": len(points)})
        keep_environment(folder / "environment.json")
        if missing:
            warn_of_another_environment(folder / "environment.json")
        checks = engine.write_outputs(study, points, store)
        while True:
            failures = _measure(study, points, missing, store, where, reporter)
            measured += len(missing)
            if missing:
                points = engine.grown(study, points, store)
                checks = engine.write_outputs(study, points, store)
            missing = [] if failures else engine.Stored.of(store, points).missing
            if not missing:
                break
    if failures:
        first = failures[0]
        raise RunError(
            f"{study.name}: {len(failures)} point(s) failed, the first ({first.point.label}) with: "
            f"{first.error} All others are stored; the same command tries these again."
        )
    stored = engine.Stored.of(store, points)
    return StudyResult(
        name=study.name,
        folder=folder,
        rows=tuple(stored.rows),
        checks=checks,
        points=len(points),
        measured=measured,
        retried=stored.retried,
        seconds=stored.seconds,
    )


def _measure(
    study: engine.Study[Any],
    points: Sequence[engine.Point],
    missing: Sequence[engine.Point],
    store: engine.Store,
    where: engine.Executor,
    reporter: engine.Reporter,
) -> list[engine.Outcome]:
    """Measure the missing points into the store and report progress; list failed points."""
    pace = engine.Pace(study.name, done=len(points) - len(missing), total=len(points))
    reporter.show(pace.now())
    failures: list[engine.Outcome] = []
    with contextlib.closing(where.outcomes(study.measure, missing)) as outcomes:
        for seen, outcome in enumerate(outcomes, start=1):
            if outcome.error is None:
                store.add(outcome.point.key, outcome.rows, outcome.seconds, outcome.attempts)
            else:
                failures.append(outcome)
            reporter.show(pace.now(seen - len(failures), len(failures)))
    return failures


def _warn_of_a_narrower_request(name: str, folder: Path, points: int, store: engine.Store) -> None:
    """Warn that results.csv and the figure will include fewer points than the store."""
    if len(store) > points:
        warnings.warn(
            f"{name}: {folder} holds {len(store)} points and {points} are asked for; files and "
            "page show these, the others stay stored",
            stacklevel=4,
        )
