"""A study small enough to be killed many times; also a program: python -m experiments.tests.toy OUT
POINTS WORKERS (0: none)."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hessblocks.errors import RunError
from hessblocks.figures.figure import Figure
from hessblocks.storage.tables import Row
from hessblocks_studies.engine.executor import Executor
from hessblocks_studies.engine.point import Point
from hessblocks_studies.engine.reporter import Silent
from hessblocks_studies.engine.study import Rows, Study, Summary
from hessblocks_studies.runner import StudyResult, measure_study


@dataclass(frozen=True, kw_only=True)
class ToySettings:
    """A point that squares a number."""

    number: int
    """What is squared."""
    pause: float | None = None
    """Seconds before it."""
    fail: str | None = None
    """Message of the error that it ends with."""
    die: str | None = None
    """A file that is there after the first attempt, which dies."""
    die_always: bool | None = None
    """Whether every attempt dies."""


def settings(scale: str, seeds: int | None) -> list[ToySettings]:
    return [ToySettings(number=number, pause=0.02) for number in range(seeds or 12)]


def measure(settings: ToySettings) -> list[Row]:
    """Squares."""
    time.sleep(settings.pause or 0)
    if settings.fail:
        raise RunError(settings.fail)
    if settings.die and not Path(settings.die).exists():
        Path(settings.die).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.die_always:
        os.kill(os.getpid(), signal.SIGKILL)
    number = settings.number
    return [{"number": number, "square": number**2, "root": number**0.5}]


def summarise(rows: Rows) -> Summary:
    return Summary(figure=Figure(title="squares", caption="", panels=()), checks=())


STUDY = Study(
    name="toy",
    title="squares",
    source="nowhere",
    published="They are squares.",
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=("number", "square", "root"),
)


def run(
    folder: Path,
    points: Sequence[ToySettings] | int = 12,
    workers: int | None = None,
    ray: str | None = None,
    gpus: float = 0,
) -> StudyResult:
    """Measure the toy study in `folder`."""
    chosen = settings("smoke", points) if isinstance(points, int) else points
    made = [point(each, gpus) for each in chosen]
    with contextlib.closing(Executor(workers, ray)) as where:
        return measure_study(
            STUDY, made, folder=folder, config={"scale": "smoke"}, where=where, reporter=Silent()
        )


def point(settings: ToySettings, gpus: float = 0) -> Point:
    return Point(study="toy", settings=settings, gpus=gpus)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), workers=int(sys.argv[3]) or None)
