"""The commands at their smallest, run in processes of their own, and what of their results must
agree."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import itertools
import json
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from hessblocks.cli.app import main
from tests.cli.helpers import use_the_terminal
from tests.crashes.disk import Disk, Fault, watched
from tests.data.helpers import write_code
from tests.pictures import empty_pictures
from tests.training.helpers import TIMINGS

LONGEST = 300.0
"""Seconds after which a command hangs."""
_SIZES = ["--depth", "1", "--width", "8", "--heads", "1", "--vocab-size", "260", "--device", "cpu"]
_STEPS = [
    "--context",
    "8",
    "--steps",
    "4",
    "--batch-size",
    "2",
    "--evaluate-every",
    "2",
    "--checkpoint-every",
    "2",
]
_PROBES = ["--curvature-sequences", "1", "--curvature-tokens", "4", "--curvature-probes", "4"]
COMMANDS = {
    "train": ["train", "sas", *_SIZES, *_STEPS, "--gains-every", "2"],
    "compare": [
        *("compare", "--presets", "sas,sas-p"),
        *(*_SIZES, *_STEPS, *_PROBES, "--gains-every", "2"),
    ],
    "curvature": [
        *("curvature", "preset:sas", *_SIZES, "--sequences", "1", "--tokens", "4"),
        *("--probes", "4", "--groups", "*.query,*.norm", "--map", "--spectrum"),
    ],
}
"""Each with the words that make it small; text and folder come behind."""
WITHOUT_TEXT: set[str] = set()
"""Commands that take no text."""
TIMED: set[str] = set()
"""Quantities of points that are times."""
CLOCKED = {"value", "standard_error"}
"""Their columns that differ between two runs."""
CLOCKS = {"seconds", "tokens_per_second", "peak_memory", "retried", "progress"}
"""Names under which a time is written, a peak or how often a worker died."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    status: int
    """Exit status; that of a signal is negative."""
    said: str
    """All that stood on the terminal."""
    calls: list[str]
    """What it did to the disk, where it was not killed."""
    unseen: list[str]
    """Changes that no call accounts for."""

    @property
    def sentences(self) -> list[str]:
        """Complaints and warnings of ours."""
        return [line for line in self.said.splitlines() if line.startswith("hessblocks: ")]


@functools.cache
def code() -> Path:
    """A little text, the same for all."""
    return write_code(Path(tempfile.mkdtemp()), files=6, lines=40)


def run(
    command: str,
    code: Path,
    folder: Path,
    fault: Fault | None = None,
    before: Callable[[], object] = lambda: None,
) -> Ended:
    """Run a command into `folder`, in a process forked from this one, which has imported
    everything.

    Args:
        command: one of `COMMANDS`.
        code: text to train on.
        folder: gets the run as `out` and the cache of texts.
        fault: what goes wrong on the way.
        before: done in the process before the command.

    Returns:
        How it ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = _words(command, code, folder)
    said, noted = folder.with_suffix(".said"), folder.with_suffix(".calls")
    noted.unlink(missing_ok=True)
    if (process := os.fork()) == 0:
        _live(words, folder, said, noted, fault, before)
    status = _wait(process)
    found = json.loads(noted.read_text()) if noted.exists() else {"calls": [], "unseen": []}
    return Ended(status=status, said=said.read_text(), **found)


def warm(command: str, code: Path, folder: Path) -> None:
    """Do the command in this process, so that what it imports is there in those forked from it."""
    quiet = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("HESSBLOCKS_CACHE", str(folder / "cache"))
        prepare(patch)
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            assert main(_words(command, code, folder)) == 0, quiet.getvalue()


def _words(command: str, code: Path, folder: Path) -> list[str]:
    words = [*COMMANDS[command], "--out", str(folder / "out")]
    return words if command in WITHOUT_TEXT else [*words, "--data", str(code)]


def _live(
    words: list[str],
    folder: Path,
    said: Path,
    noted: Path,
    fault: Fault | None,
    before: Callable[[], object],
) -> None:
    """The life of the forked process."""
    status = 99
    try:
        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        use_the_terminal()
        os.environ["HESSBLOCKS_CACHE"] = str(folder / "cache")
        jaxtyping.config.update("jaxtyping_disable", True)
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning)
        prepare(pytest.MonkeyPatch())
        before()
        disk = Disk(folder, fault)
        with watched(disk):
            status = main(words)
        noted.write_text(json.dumps({"calls": disk.calls, "unseen": disk.unseen}))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


PREPARATIONS: list[Callable[[pytest.MonkeyPatch], object]] = []
"""What other commands need besides."""


def prepare(patch: pytest.MonkeyPatch) -> None:
    """Pictures without content, and no commit, which may change meanwhile."""
    patch.setattr(import_module("hessblocks.storage.config"), "_commit", lambda: None)
    empty_pictures(patch)
    for own in PREPARATIONS:
        own(patch)


def at_call(name: str, moment: int, action: Callable[[], object]) -> None:
    """Let the n-th call of a method do something else; for a process of its own.

    Args:
        name: of the method, with those of its module and class.
        moment: counted from 1.
        action: what happens instead.
    """
    place, _, method = name.rpartition(".")
    module, _, kind = place.rpartition(".")
    owner = getattr(import_module(module), kind)
    real, count = getattr(owner, method), itertools.count(1)

    def called(*arguments: Any, **given: Any) -> Any:
        return action() if next(count) == moment else real(*arguments, **given)

    setattr(owner, method, called)


def _wait(process: int) -> int:
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(process, 9)
    os.waitpid(process, 0)
    raise AssertionError("the command hangs")


def results(folder: Path) -> dict[str, Any]:
    """What a command left, file by file, without clocks; of pages and pictures that they are
    there."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file():
            try:
                found[name] = _content(path)
            except (ValueError, KeyError, TypeError):
                found[name] = path.read_bytes()
        elif not any(path.iterdir()):
            found[name] = "empty folder"
    return found


def _content(path: Path) -> Any:
    if path.suffix in {".html", ".png", ".svg"}:
        return path.stat().st_size > 0
    if path.name == "results.csv":
        with path.open(encoding="utf-8") as file:
            return [_row(row) for row in csv.DictReader(file) if row.get("quantity") not in TIMINGS]
    if path.name == "points.jsonl":
        records = [json.loads(line)["record"] for line in path.read_text().splitlines()]
        return {
            one["key"]: [_row({**one["common"], **row}) for row in one["rows"]] for one in records
        }
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
    if path.name == "command.json":  # each run has a folder of its own
        words = map(Path, json.loads(path.read_text(encoding="utf-8"))["words"])
        return [word.name if word.is_absolute() else str(word) for word in words]
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text(encoding="utf-8")))
    return path.read_bytes()


def _row(row: dict[str, Any]) -> dict[str, Any]:
    timed = row.get("quantity") in TIMED
    return {name: value for name, value in row.items() if not (timed and name in CLOCKED)}


def _timeless(value: dict[str, Any]) -> dict[str, Any]:
    return {name: own for name, own in value.items() if name not in CLOCKS}
