"""Run a study: measure what is missing, write what it amounts to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hessblocks.errors import ArgumentError, RunError
from hessblocks.files import write_json
from hessblocks.studies.catalogue import find
from hessblocks.studies.cluster import RayCluster
from hessblocks.studies.executors import Executor, InProcess
from hessblocks.studies.point import Outcome, Point, Row
from hessblocks.studies.processes import LocalProcesses
from hessblocks.studies.progress import Pace, Reporter, Silent
from hessblocks.studies.results import write_rows
from hessblocks.studies.store import Store, opened
from hessblocks.studies.study import Check, Study


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """A finished study."""

    name: str
    """Of the study."""
    folder: Path
    """config.json, environment.json, points.jsonl, results.csv, summary.json and figure.json."""
    rows: tuple[Row, ...]
    """All measurements."""
    checks: tuple[Check, ...]
    """The published facts next to ours."""
    points: int
    """Independent pieces of work."""
    measured: int
    """How many of them this call measured; the others were there."""
    retried: int
    """Times a point was started again because its worker died."""
    seconds: float
    """Time of all points together, summed over workers and calls."""


def run_study(
    name: str,
    *,
    out: str | Path,
    scale: str = "laptop",
    seeds: int | None = None,
    workers: int | None = None,
    ray: str | None = None,
    reporter: Reporter | None = None,
) -> StudyResult:
    """Reproduce a figure or table; goes on where an earlier call with the same `out` stopped.

    Args:
        name: as `hessblocks.studies.names()` lists them.
        out: folder of this study alone.
        scale: smoke (seconds), laptop (minutes) or paper (the published settings).
        seeds: repetitions; None means the scale's own number.
        workers: processes of this machine; None measures in this one.
        ray: address of a Ray cluster; excludes `workers`.
        reporter: told of every point.

    Returns:
        The measurements, with the published facts beside them.

    Raises:
        ArgumentError: unknown study or scale, seeds or workers below 1, both workers and ray.
        RunError: another process holds `out`, a newer version wrote it, a point failed (all others
            are kept), or no cluster answers.
    """
    study = find(name)
    if seeds is not None and seeds < 1:
        raise ArgumentError(f"seeds: expected at least 1, got {seeds}")
    return measure_study(
        study,
        study.points(scale, seeds),
        folder=Path(out),
        config={"command": "reproduce", "study": name, "scale": scale, "seeds": seeds},
        workers=workers,
        ray=ray,
        reporter=reporter or Silent(),
    )


def measure_study(
    study: Study,
    points: Sequence[Point],
    *,
    folder: Path,
    config: dict[str, object],
    workers: int | None = None,
    ray: str | None = None,
    reporter: Reporter,
) -> StudyResult:
    """Measure the missing ones of `points` into `folder` and write all its files; see `run_study`."""
    from hessblocks.training.environment import environment  # loads the Trainer: not in workers

    with opened(folder) as store:
        missing = [point for point in points if point not in store]
        write_json(folder / "config.json", {**config, "points": len(points)})
        write_json(folder / "environment.json", environment())
        pace = Pace(study.name, done=len(points) - len(missing), total=len(points))
        reporter.show(pace.now())
        failures = []
        if missing:
            with _executor(workers, ray) as executor:
                for outcome in executor.outcomes(study.measure, missing):
                    if outcome.error is None:
                        store.add(outcome)
                    else:
                        failures.append(outcome)
                    reporter.show(pace.now(outcome))
        result = _write(study, points, store, folder, len(missing) - len(failures))
    if failures:
        raise _failure(study, failures)
    return result


def _write(
    study: Study, points: Sequence[Point], store: Store, folder: Path, measured: int
) -> StudyResult:
    """Write what the finished ones of `points` amount to."""
    rows = store.rows(points)
    summary = study.summarise(rows)
    done = sum(point in store for point in points)
    result = StudyResult(
        name=study.name,
        folder=folder,
        rows=tuple(rows),
        checks=summary.checks,
        points=len(points),
        measured=measured,
        retried=store.retried(points),
        seconds=store.seconds(points),
    )
    write_rows(folder / "results.csv", study.columns, rows)
    write_json(folder / "figure.json", summary.figure.to_dict())
    about = {
        "study": study.name,
        "title": study.title,
        "source": study.source,
        "published": study.published,
        "points": {"total": len(points), "done": done, "missing": len(points) - done},
        "seconds": result.seconds,
        "retried": result.retried,
    }
    write_json(folder / "summary.json", {**about, **summary.to_dict()})
    return result


@contextlib.contextmanager
def _executor(workers: int | None, ray: str | None) -> Iterator[Executor]:
    if workers is not None and ray is not None:
        raise ArgumentError("ray: give either ray or workers, not both")
    if ray is None:
        yield InProcess() if workers is None else LocalProcesses(workers)
        return
    cluster = RayCluster(ray)
    try:
        yield cluster
    finally:
        cluster.close()


def _failure(study: Study, failures: Sequence[Outcome]) -> RunError:
    first = failures[0]
    return RunError(
        f"{study.name}: {len(failures)} point(s) failed, the first ({first.point.label}) with: "
        f"{first.error} All others are stored; the same command tries these again."
    )
