"""A command stopped at one call after the other, and started again each time.

A program: python -m tests.crashes.ordeal CASES [COMMAND ...] does so CASES times for each kind of
fault and prints what the commands do to the disk, and how many faults they survived.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.crashes.commands import COMMANDS, Ended, code, results, run, warm
from tests.crashes.disk import ERRORS, KILLS, Fault

HARMLESS = {"unlink", "rmdir"}
"""Calls whose failure may go unsaid: what was to be removed is removed by a later command."""
_SIGKILL = -9


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A command that nothing happened to."""

    calls: list[str]
    """What it did to the disk."""
    unseen: list[str]
    """Changes that no call accounts for."""
    results: dict[str, Any]
    """What it left."""
    sentences: list[str]
    """What it warns of."""


@functools.cache
def undisturbed(command: str) -> Undisturbed:
    """The command left alone; done once in this process first, so that forked ones need no
    imports."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        warm(command, code(), folder)
        shutil.rmtree(folder)
        ended = run(command, code(), folder)
        assert ended.status == 0, ended.said
        return Undisturbed(
            calls=ended.calls,
            unseen=ended.unseen,
            results=results(folder),
            sentences=ended.sentences,
        )


def spread(count: int, cases: int) -> list[int]:
    """`cases` of the numbers from 1 to `count`, one of each stretch, drawn with a fixed seed."""
    draw, cases = random.Random(0), min(count, cases)
    edges = [count * index // cases for index in range(cases + 1)]
    return [draw.randint(low + 1, high) for low, high in itertools.pairwise(edges)]


def faults_of(command: str, fault: Fault, folder: Path) -> list[str]:
    """What is wrong after the fault and a second start; none where the command survives.

    Args:
        command: one of `COMMANDS`.
        fault: what happens to the first start.
        folder: for both; removed.

    Returns:
        A sentence each.
    """
    whole = undisturbed(command)
    call = whole.calls[fault.moment - 1]
    where = f"{command}, {fault.kind} at call {fault.moment} ({call})"
    found = _first(run(command, code(), folder, fault), fault, call)
    if not found:
        found = _second(run(command, code(), folder), fault, results(folder), whole)
    shutil.rmtree(folder)
    return [f"{where}: {sentence}" for sentence in found]


def _first(ended: Ended, fault: Fault, call: str) -> list[str]:
    if fault.kind in KILLS:
        return [] if ended.status == _SIGKILL else [f"not killed, status {ended.status}"]
    if ended.status == 0 and call.split()[0] in HARMLESS:
        return []
    complaints = [text for text in ended.sentences if "hessblocks: warning:" not in text]
    if ended.status == 1 and len(complaints) == 1 and "Traceback" not in ended.said:
        return []
    return [f"expected one sentence and status 1, got {ended.status}:\n{ended.said}"]


def _second(ended: Ended, fault: Fault, found: dict[str, Any], expected: Undisturbed) -> list[str]:
    if ended.status != 0:
        return [f"started again it ends with {ended.status}:\n{ended.said}"]
    new = [] if fault.kind == "power" else set(ended.sentences) - set(expected.sentences)
    names = sorted(found.keys() | expected.results.keys())
    if fault.kind == "torn":  # half a line of a store is kept aside, and said
        new = [text for text in new if "1 damaged line(s) kept aside in points.damaged" not in text]
        names = [name for name in names if not name.endswith("/points.damaged")]
    differing = [name for name in names if found.get(name) != expected.results.get(name)]
    return [f"it says {text!r}" for text in new] + [f"{name} differs" for name in differing]


def survived(command: str, kind: str, cases: int, folder: Path) -> tuple[int, list[str]]:
    """The command under one kind of fault, at calls that are spread evenly; only what is written
    can be torn.

    Returns:
        How many faults there were, and what went wrong.
    """
    calls = enumerate(undisturbed(command).calls, start=1)
    fitting = [n for n, call in calls if kind != "torn" or call.startswith(("write", "library"))]
    moments = [fitting[place - 1] for place in spread(len(fitting), cases)]
    wrong = [
        sentence
        for moment in moments
        for sentence in faults_of(command, Fault(kind=kind, moment=moment), folder / str(moment))
    ]
    return len(moments), wrong


def calls_table(calls: Sequence[str]) -> str:
    """How often each kind of call changes what."""
    counts = Counter(calls)
    return "\n".join(f"{count:5} {call}" for call, count in counts.items())


def main() -> None:
    """See the module."""
    cases, *commands = sys.argv[1:]
    failed = False
    for command in commands or COMMANDS:
        whole = undisturbed(command)
        print(f"{command}: {len(whole.calls)} calls\n{calls_table(whole.calls)}")
        for kind in (*KILLS, *ERRORS):
            with tempfile.TemporaryDirectory() as folder:
                count, wrong = survived(command, kind, int(cases), Path(folder))
            print(f"{command}, {kind}: {count} of {len(whole.calls)} calls, {len(wrong)} faults")
            print("\n".join(wrong), flush=True)
            failed |= bool(wrong)
    sys.exit(failed)


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    torch.set_num_threads(1)
    main()
