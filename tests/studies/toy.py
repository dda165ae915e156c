"""A study small enough to be killed many times; also a program: python -m tests.studies.toy OUT POINTS WORKERS (0: none)."""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hessblocks.errors import RunError
from hessblocks.figures.figure import Figure
from hessblocks.storage.tables import Row, Scalar
from hessblocks.studies.engine.point import Point
from hessblocks.studies.engine.reporter import Silent
from hessblocks.studies.engine.runner import StudyResult, executor, measure_study
from hessblocks.studies.engine.study import Settings, Study, Summary


def settings(scale: str, seeds: int | None) -> list[Settings]:
    return [{"number": number, "pause": 0.02} for number in range(seeds or 12)]


def measure(settings: Mapping[str, Scalar]) -> list[Row]:
    """Squares; `die` names a file that is there after the first attempt, `fail` a message."""
    time.sleep(float(settings.get("pause") or 0))
    if settings.get("fail"):
        raise RunError(str(settings["fail"]))
    mark = settings.get("die")
    if mark and not Path(str(mark)).exists():
        Path(str(mark)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.get("die_always"):
        os.kill(os.getpid(), signal.SIGKILL)
    number = settings["number"]
    assert isinstance(number, int)
    return [{"number": number, "square": number**2, "root": number**0.5}]


def summarise(rows: Sequence[Row]) -> Summary:
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
    points: Sequence[Settings] | int = 12,
    workers: int | None = None,
    ray: str | None = None,
    gpus: float = 0,
) -> StudyResult:
    """Measure the toy study in `folder`."""
    chosen = settings("smoke", points) if isinstance(points, int) else points
    made = [point(each, gpus) for each in chosen]
    with executor(workers, ray) as where:
        return measure_study(
            STUDY, made, folder=folder, config={"scale": "smoke"}, where=where, reporter=Silent()
        )


def point(settings: Settings, gpus: float = 0) -> Point:
    return Point(study="toy", settings=settings, gpus=gpus)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), workers=int(sys.argv[3]) or None)
