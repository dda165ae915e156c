"""Executors agree with each other, and neither death nor failure of a point loses another."""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from joblib.externals.loky import get_reusable_executor

from experiments.tests import toy
from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.tables import Row
from hessblocks_studies.engine import POINTS, Stored, read
from hessblocks_studies.engine.executor import Executor
from hessblocks_studies.engine.point import Point
from hessblocks_studies.engine.reporter import Silent
from hessblocks_studies.runner import measure_study
from tests.training.helpers import in_process_of_its_own


@pytest.fixture(autouse=True, scope="module")
def _no_workers_left() -> Iterator[None]:
    """Idle workers would keep a process that ends here for five minutes."""
    yield
    get_reusable_executor().shutdown(wait=False, kill_workers=True)


def stored(folder: Path, points: int = 12) -> list[dict]:
    made = [toy.point(each) for each in toy.settings("smoke", points)]
    return Stored.of(read(folder), made).rows


def test_local_processes_give_what_this_process_gives_though_one_dies(tmp_path: Path) -> None:
    points = [toy.ToySettings(number=number) for number in range(5)]
    dying = toy.ToySettings(number=5, die=str(tmp_path / "mark"))
    there = toy.run(tmp_path / "there", [dying, *points], workers=2)
    # Others restart too: the other worker's, and those whose outcome nobody had taken.
    assert there.retried >= 1
    here = toy.run(tmp_path / "here", [dying, *points])
    assert here.retried == 0
    assert here.rows == there.rows
    files = [(tmp_path / where / "results.csv").read_text() for where in ("here", "there")]
    assert files[0] == files[1]


def test_a_finished_point_is_never_measured_again(tmp_path: Path) -> None:
    toy.run(tmp_path, 5)
    before = (tmp_path / POINTS).read_bytes()
    again = toy.run(tmp_path, 8)
    assert (again.points, again.measured) == (8, 3)
    assert (tmp_path / POINTS).read_bytes().startswith(before)


def test_a_point_that_kills_every_worker_fails_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hessblocks_studies.engine.executor.MOST_ATTEMPTS", 2)
    points = [
        toy.ToySettings(number=0, pause=0.2, die_always=True),
        toy.ToySettings(number=1, pause=0.5),
        toy.ToySettings(number=2),
    ]
    with pytest.raises(RunError, match=r"1 point\(s\) failed.*died 2 times"):
        toy.run(tmp_path, points, workers=2)
    assert len(read(tmp_path)) == 2


def test_an_error_in_a_point_is_told_with_its_settings(tmp_path: Path) -> None:
    points = [toy.ToySettings(number=7, fail="no such thing"), toy.ToySettings(number=1)]
    with pytest.raises(RunError, match=r"\(number 7.*no such thing"):
        toy.run(tmp_path, points)
    assert len(read(tmp_path)) == 1


def test_what_is_dropped_is_not_taken_for_what_comes_next() -> None:
    first, second = (
        [toy.point(toy.ToySettings(number=n, pause=0.2)) for n in r] for r in ((0, 1), (2, 3))
    )
    crew = Executor(2)
    dropped = crew.outcomes(toy.measure, first)
    next(dropped)
    dropped.close()
    found = [outcome.point for outcome in crew.outcomes(toy.measure, second)]
    assert sorted(found, key=lambda point: point.key) == sorted(second, key=lambda point: point.key)


def seen_device(settings: toy.ToySettings) -> list[Row]:
    """The accelerator that a worker sees, and the worker."""
    time.sleep(0.2)
    return [{"device": os.environ["CUDA_VISIBLE_DEVICES"], "process": os.getpid()}]


@pytest.mark.slow
def test_points_that_need_an_accelerator_have_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessblocks_studies.engine.executor.accelerators", lambda: ["4", "6"])
    points = [toy.point(toy.ToySettings(number=number), gpus=1) for number in range(6)]
    rows = [outcome.rows[0] for outcome in Executor(3).outcomes(seen_device, points)]
    assert {row["device"] for row in rows} == {"4", "6"}
    assert len({row["process"] for row in rows}) == 2


def test_no_workers_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="workers: expected at least 1, got 0"):
        toy.run(tmp_path, workers=0)
    with pytest.raises(ArgumentError, match="either ray or workers"):
        toy.run(tmp_path, workers=1, ray="auto")


class Forked:
    """The toy study in a process of its own, which needs no imports."""

    def __init__(self, folder: Path, points: int, workers: int) -> None:
        work = functools.partial(toy.run, folder, points, workers or None)
        self._process = in_process_of_its_own(work)

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


def program(folder: Path, points: int, workers: int) -> subprocess.Popen[bytes]:
    """The toy study as a program."""
    words = [str(folder), str(points), str(workers)]
    return subprocess.Popen([sys.executable, "-m", "experiments.tests.toy", *words])


def kill_and_finish(
    start: Callable[[Path, int, int], Forked | subprocess.Popen[bytes]],
    folder: Path,
    delays: list[float],
    points: int,
    workers: int,
) -> None:
    """Start the toy study, SIGKILL it after each delay, then let it end."""
    for delay in delays:
        doomed = start(folder, points, workers)
        deadline = time.monotonic() + 600
        before = len(read(folder))
        while len(read(folder)) == before and doomed.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(delay)
        doomed.kill()
        doomed.wait()
    assert start(folder, points, workers).wait() == 0


def check_undisturbed(folder: Path, points: int) -> None:
    lines = (folder / POINTS).read_bytes().splitlines()
    assert len(lines) == points
    assert stored(folder, points) == [
        row for each in toy.settings("smoke", points) for row in toy.measure(each)
    ]


def test_a_killed_command_goes_on_where_it_was(tmp_path: Path) -> None:
    kill_and_finish(Forked, tmp_path, [0.033], 60, workers=0)
    check_undisturbed(tmp_path, 60)


@pytest.mark.slow
def test_ten_kills_change_nothing(tmp_path: Path) -> None:
    kill_and_finish(program, tmp_path, [0.007 * step for step in range(10)], 400, workers=2)
    check_undisturbed(tmp_path, 400)


def test_keys_tell_points_apart() -> None:
    one, other = toy.ToySettings(number=1, pause=0.1), toy.ToySettings(number=2, pause=0.1)
    base = Point(study="toy", settings=one)
    assert base.key == Point(study="toy", settings=toy.ToySettings(pause=0.1, number=1)).key
    others = [
        Point(study="toy", settings=other),
        Point(study="toy", settings=replace(one, pause=0.1 + 1e-16), revision=2),
        Point(study="tow", settings=one),
    ]
    assert len({base.key, *(other.key for other in others)}) == 4


def test_a_key_is_plain_names_and_values() -> None:
    """Stores on disk hold these texts."""
    point = Point(study="toy", settings=toy.ToySettings(number=1, pause=0.5), revision=2)
    assert point.key == '{"revision":2,"settings":{"number":1,"pause":0.5},"study":"toy"}'
    assert point.label == "number 1, pause 0.5"


def measure_with_one_nan(settings: toy.ToySettings) -> list[Row]:
    return [{"number": settings.number, "square": float("nan") if settings.number == 2 else 1.0}]


def test_a_value_that_is_not_finite_fails_its_point_alone(tmp_path: Path) -> None:
    points = [toy.point(toy.ToySettings(number=number)) for number in range(4)]
    match = (
        r"toy: 1 point\(s\) failed, the first \(number 2\) with: square of its row 1 is nan, not a"
    )
    with pytest.raises(RunError, match=match):
        measure_study(
            replace(toy.STUDY, measure=measure_with_one_nan),
            points,
            folder=tmp_path,
            config={"scale": "smoke"},
            where=Executor(),
            reporter=Silent(),
        )
    assert Stored.of(read(tmp_path), points).missing == [points[2]]
