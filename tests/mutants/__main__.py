"""Plant each fault in a copy of the package and see its tests turn red: `make mutants`.

    python -m tests.mutants                       all of them
    python -m tests.mutants --only fsync          those whose name or file has this word
    python -m tests.mutants --workers 1

Exit status 1 where a fault survives or cannot be planted, or where a test is red without any fault.
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants.every import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.named_tests import found_test
from tests.mutants.planting import place_of, planted
from tests.mutants.sources import PACKAGES, TOP

if TYPE_CHECKING:
    import pytest

LIMIT = 300
"""Seconds for the tests of one mutant."""
LIMIT_OF_ALL = 1800
"""Seconds for all tests without a fault."""
HEAVY = ("torch", "transformers.trainer", "scipy.stats", "matplotlib.figure", "pytest")
"""Imported once; each run of pytest is a fork, which then imports the package alone."""
FAILED = 1
"""Exit status of pytest where tests ran and some failed; any other is no kill."""
BROKEN = 70
"""Exit status where pytest itself breaks."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--only", default="", help="words of the name or the place")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args(words)
    chosen = [one for one in MUTANTS if asked.only in _title(one)]
    if not chosen:
        parser.error(f"no fault has the word {asked.only!r} in its place or name")
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    for name in HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, str(number)) for number in range(asked.workers)]
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(package, places[0] / package.name, ignore=ignored)
        if not sound(places[0], sorted({test for one in chosen for test in _tests(one)})):
            return 1
        for place in places[1:]:  # with the bytecode of the right source
            shutil.copytree(places[0], place)
        killed = sum(verdict == "killed" for verdict in verdicts(chosen, places))
    print(f"{killed} of {len(chosen)} mutants killed")
    return 0 if killed == len(chosen) else 1


@dataclass
class SlowOnlyByName:
    """A plugin of pytest: slow tests run where a fault names nothing that runs every day.

    That is a case by its own name, or a test of which every case is slow.
    """

    tests: Sequence[str]

    def pytest_collection_modifyitems(self, items: list["pytest.Item"]) -> None:
        slow = {item.nodeid for item in items if item.get_closest_marker("slow")}
        everyday = {_function(item.nodeid) for item in items if item.nodeid not in slow}
        alone = {test for test in map(_function, slow) if test not in everyday}
        items[:] = [
            item
            for item in items
            if item.nodeid not in slow
            or str(TOP / item.nodeid) in self.tests
            or (_function(item.nodeid) in alone and str(TOP / _function(item.nodeid)) in self.tests)
        ]


@dataclass
class Run:
    """Tests in a process of their own, with the package of a copy."""

    copy: Path
    """Stands first in the path of Python."""
    tests: Sequence[str]
    """As pytest calls them."""
    limit: int = LIMIT
    """Seconds until they are stopped."""
    start: float = field(default_factory=time.monotonic)
    process: BaseProcess = field(init=False)

    def __post_init__(self) -> None:
        self.process = multiprocessing.get_context("fork").Process(target=self._tests)
        self.process.start()

    @property
    def said(self) -> Path:
        """What pytest printed."""
        return self.copy.with_suffix(".log")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def over(self) -> bool:
        """Whether the tests have ended; they are stopped where their time is up."""
        if self.process.exitcode is None and self.seconds > self.limit:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid or 0, signal.SIGKILL)
            self.process.join()
        return self.process.exitcode is not None

    def _tests(self) -> None:
        import pytest

        os.setsid()
        with self.said.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(TOP)
        os.environ["PYTHONPATH"] = str(self.copy)
        sys.path.insert(0, str(self.copy))
        known = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
        options = ("-x", "-q", "-p", "no:cacheprovider", "--tb=short", "-W", known, "-m", "")
        try:
            for package in PACKAGES:
                found = find_spec(package.name)
                assert self.copy in Path(str(found and found.origin)).parents, found
            status = int(pytest.main([*options, *self.tests], plugins=[SlowOnlyByName(self.tests)]))
        except BaseException:  # which would end the process with the status of failed tests
            traceback.print_exc()
            status = BROKEN
        sys.exit(status)


def sound(copy: Path, tests: Sequence[str]) -> bool:
    """Whether the tests are green on a copy without a fault: a red one would kill every mutant."""
    run = Run(copy, tests, LIMIT_OF_ALL)
    while not run.over():
        wait([run.process.sentinel], timeout=1)
    status = run.process.exitcode
    word = "green" if status == 0 else f"RED (pytest ended with {status})"
    print(f"{word}: {len(tests)} tests and files without a fault, {run.seconds:.0f} s", flush=True)
    if status != 0:
        print(run.said.read_text(encoding="utf-8"))
    return status == 0


def verdicts(mutants: Sequence[Mutant], copies: Sequence[Path]) -> Iterator[str]:
    """Yield what became of each mutant as its tests end, and print a line for each."""
    # bytecode of a wrong file must not be taken for that of the next wrong file of its size
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    waiting, free = list(reversed(mutants)), list(copies)
    running: list[tuple[Mutant, Run]] = []
    while waiting or running:
        while waiting and free:
            mutant = waiting.pop()
            try:
                _plant(mutant, free[-1])
            except ValueError as error:
                yield _told(mutant, f"NO FAULT ({error})")
                continue
            running.append((mutant, Run(free.pop(), _tests(mutant))))
        wait([run.process.sentinel for _, run in running], timeout=1)
        for mutant, run in [one for one in running if one[1].over()]:
            running.remove((mutant, run))
            right = place_of(mutant).file
            shutil.copy2(right, _copied(right, run.copy))
            free.append(run.copy)
            yield _told(mutant, verdict_of(run.process.exitcode), run.seconds)


def _plant(mutant: Mutant, copy: Path) -> None:
    file, text = planted(mutant)
    _copied(file, copy).write_bytes(text)


def _copied(file: Path, copy: Path) -> Path:
    """Where a file of a package stands in a copy."""
    package = next(package for package in PACKAGES if package in file.parents)
    return copy / file.relative_to(package.parent)


def _function(test: str) -> str:
    return test.partition("[")[0]


def _tests(mutant: Mutant) -> list[str]:
    return [found_test(test) for test in mutant.tests]


def _title(mutant: Mutant) -> str:
    try:
        return f"{place_of(mutant)}: {mutant.name}"
    except ValueError:  # said when it is to be planted
        return f"nowhere: {mutant.name}"


def verdict_of(status: int | None) -> str:
    """What an exit status of pytest says of a mutant."""
    if status == FAILED:
        return "killed"
    if status == -signal.SIGKILL:
        return f"NO END within {LIMIT} s"
    return "SURVIVED" if status == 0 else f"NO TEST (pytest ended with {status})"


def _told(mutant: Mutant, verdict: str, seconds: float = 0.0) -> str:
    print(f"{verdict:8} {_title(mutant)}, {seconds:.0f} s", flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
