"""Several processes: one that is stopped or gone ends all, with one sentence; one that works alone
is waited for."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hessblocks.cli.app import main
from hessblocks.training import ranks
from hessblocks.training.trainer import GuardedTrainer
from tests.cli.helpers import SIZES, use_the_terminal
from tests.data.helpers import write_code

EVERY, PATIENCE, MEETING = 0.2, 4.0, 4
SECOND = [pytest.param(0, marks=pytest.mark.slow), 1]
"""Each case is a command in two processes: one of the two ranks is tried every day, both in slow
runs."""
WORDS = ["train", "sas", *SIZES, "--batch-size", "4", "--device", "cpu"]
NO_SIGN = (
    "hessblocks: process {} of 2 (counted from 0) has given no sign of life for 4 s; all end, and "
    "the same command goes on where it stopped."
)


class Noted(ranks.Heart):
    """Notes who is lost, where a heart would end its process."""

    noted: list[int] | None = None

    def lost(self, silent: list[int]) -> None:
        self.noted = silent
        self._end.set()


@pytest.fixture
def store() -> dist.TCPStore:
    return dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5)
    )


def until(reached: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def hearts(store: dist.TCPStore, count: int = 3) -> list[Noted]:
    shared = [store.clone() for _ in range(count)]
    return [Noted(one, rank, count, every=0.05, patience=1.0) for rank, one in enumerate(shared)]


def test_who_stops_beating_is_lost(store: dist.TCPStore) -> None:
    first, second, third = hearts(store)
    time.sleep(0.5)
    third.stop()
    until(lambda: first.noted and second.noted)
    assert (first.noted, second.noted, third.noted) == ([2], [2], None)


def test_nobody_is_lost_while_all_beat(store: dist.TCPStore) -> None:
    all_three = hearts(store)
    time.sleep(3)
    for heart in all_three:
        heart.stop()
    assert [heart.noted for heart in all_three] == [None] * 3


@pytest.mark.parametrize("earlier", [0, 17])
def test_who_has_never_beaten_is_lost(store: dist.TCPStore, earlier: int) -> None:
    """Silence counts from the start; the count of an earlier meeting is no beat."""
    if earlier:
        store.add("beats 1", earlier)
    heart = Noted(store.clone(), 0, 2, every=0.05, patience=0.5)
    until(lambda: heart.noted)
    assert heart.noted == [1]


def test_who_comes_within_the_patience_is_waited_for(store: dist.TCPStore) -> None:
    store.add("beats 1", 17)
    first = Noted(store.clone(), 0, 2, every=0.05, patience=2.0)
    time.sleep(0.8)
    second = Noted(store.clone(), 1, 2, every=0.05, patience=2.0)
    time.sleep(3)
    for heart in (first, second):
        heart.stop()
    assert (first.noted, second.noted) == (None, None)


def test_without_the_store_the_first_is_lost(store: dist.TCPStore) -> None:
    class Deaf:
        answers = True

        def add(self, name: str, by: int) -> int:
            if not self.answers:
                raise dist.DistNetworkError("nobody there")
            return store.add(name, max(by, 1))  # all beat

    deaf = Deaf()
    heart = Noted(deaf, 1, 3, every=0.05, patience=1.0)  # type: ignore[arg-type]
    time.sleep(0.5)
    deaf.answers = False
    until(lambda: heart.noted)
    assert heart.noted == [0]


@dataclass(frozen=True)
class Rank:
    """A process of two."""

    process: ForkServerProcess
    said: Path

    def status(self, seconds: float = 120) -> int | None:
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            raise AssertionError(self.said.read_text())
        return self.process.exitcode

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid
        os.kill(self.process.pid, number)

    def sentences(self) -> list[str]:
        text = self.said.read_text()
        assert "Traceback" not in text, text
        return [line for line in text.splitlines() if line.startswith("hessblocks: ")]


def nothing(rank: int) -> None:
    """What is done before the command."""


def live(
    words: list[str], said: Path, environment: dict[str, str], before: Callable[[int], object]
) -> None:
    """The life of a process."""
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    use_the_terminal()
    os.environ.update(environment)
    ranks.EVERY, ranks.PATIENCE = EVERY, PATIENCE
    before(int(environment["RANK"]))
    sys.exit(main(words))


def two(folder: Path, steps: int, before: Callable[[int], object] = nothing) -> list[Rank]:
    """Train in two processes, which a third has forked that has imported everything and done
    nothing.

    Threads of this one would not be there in a fork of it, and torch waits for them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = write_code(folder / "code")
    words = [*WORDS, "--data", str(code), "--steps", str(steps), "--out", str(folder / "out")]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place |= {"HESSBLOCKS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    found = []
    for rank in range(2):
        sizes = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank}
        own = place | {name: str(value) for name, value in sizes.items()}
        said = folder / f"said-{rank}"
        process = context.Process(target=live, args=(words, said, own, before), daemon=True)
        process.start()
        found.append(Rank(process, said))
    return found


def trains(folder: Path) -> None:
    """Wait until several losses are noted."""
    metrics = folder / "out" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") > 3, seconds=120)
    time.sleep(1)  # a few beats


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_process_ends_all_with_one_sentence(tmp_path: Path, stopped: int) -> None:
    both = two(tmp_path, steps=100_000)
    trains(tmp_path)
    both[stopped].signal(signal.SIGSTOP)
    try:
        assert both[1 - stopped].status() == 1
        assert both[1 - stopped].sentences() == [NO_SIGN.format(stopped)]
    finally:
        both[stopped].signal(signal.SIGCONT)
    assert both[stopped].status() == 1
    assert len(both[stopped].sentences()) <= 1  # that the other has ended


@pytest.mark.parametrize("dead", SECOND)
def test_a_dead_process_ends_all(tmp_path: Path, dead: int) -> None:
    both = two(tmp_path, steps=100_000)
    trains(tmp_path)
    both[dead].signal(signal.SIGKILL)
    assert both[1 - dead].status() == 1
    assert both[dead].status() == -signal.SIGKILL
    said = both[1 - dead].sentences()
    ended = "another process has ended; the same command goes on where it stopped."
    assert said in ([f"hessblocks: {ended}"] if dead == 1 else [], [NO_SIGN.format(dead)])


def fails_at_the_fourth_step(failing: int, rank: int) -> None:
    if rank != failing:
        return
    real, steps = GuardedTrainer.training_step, iter(range(100))

    def step(*arguments: object, **given: object) -> object:
        if next(steps) == 3:
            raise RuntimeError("can't allocate memory: you tried to allocate 7 bytes")
        return real(*arguments, **given)  # type: ignore[arg-type]

    GuardedTrainer.training_step = step  # type: ignore[method-assign,assignment]


def stops_before_it_beats(stopping: int, rank: int) -> None:
    """The watch of the others begins, that of the stopped one never does."""
    if rank != stopping:
        return

    def stop(heart: object, store: dist.Store, *_: object, **__: object) -> None:
        # the first process holds the store: stopped at once, the other might still be meeting it
        store.wait([f"beats {1 - stopping}"], timedelta(seconds=120))
        os.kill(os.getpid(), signal.SIGSTOP)

    ranks.Heart.__init__ = stop  # type: ignore[method-assign,assignment]


def stops_before_it_meets(stopping: int, rank: int) -> None:
    ranks.MEETING = timedelta(seconds=MEETING)
    if rank == stopping:
        ranks.join = lambda device: os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize(
    ("before", "stopping"),
    [
        (stops_before_it_beats, 0),
        pytest.param(stops_before_it_beats, 1, marks=pytest.mark.slow),
        (stops_before_it_meets, 1),
        pytest.param(stops_before_it_meets, 0, marks=pytest.mark.slow),
    ],
)
def test_one_that_is_stopped_in_its_first_seconds_is_not_waited_for_without_end(
    tmp_path: Path, before: Callable[[int, int], None], stopping: int
) -> None:
    both = two(tmp_path, steps=100_000, before=partial(before, stopping))
    try:
        assert both[1 - stopping].status(300) == 1  # a minute of silence, on a busy machine
        (said,) = both[1 - stopping].sentences()
        words = (
            f"have not met within {MEETING} s"
            if before is stops_before_it_meets
            else "no sign of life"
        )
        assert words in said
    finally:
        both[stopping].signal(signal.SIGKILL)


@pytest.mark.parametrize("failing", SECOND)
def test_an_error_in_one_ends_the_other(tmp_path: Path, failing: int) -> None:
    both = two(tmp_path, steps=100_000, before=partial(fails_at_the_fourth_step, failing))
    assert [rank.status() for rank in both] == [1, 1]
    assert both[1].sentences() == []
    (said,) = both[0].sentences()
    expected = "out of memory;" if failing == 0 else "another process has ended (process 1: can't"
    assert expected in said


def reports_slowly(rank: int) -> None:
    work: Any = import_module("hessblocks.cli.commands.work")
    work.write_report = lambda folder: time.sleep(2 * PATIENCE)


@pytest.mark.slow
def test_one_that_works_alone_is_waited_for(tmp_path: Path) -> None:
    """The report takes longer than the patience with a process that is lost."""
    both = two(tmp_path, steps=4, before=reports_slowly)
    assert [rank.status() for rank in both] == [0, 0]
    assert [rank.sentences() for rank in both] == [[], []]
