"""A tiny comparison, its numbers without the timings, and processes that are killed on the way."""

import json
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from hessblocks.data.corpus import Corpus
from hessblocks.progress import Progress
from hessblocks.settings.run_settings import (
    ComparisonSettings,
    CurvatureSettings,
    ModelSettings,
    TrainingSettings,
)
from hessblocks.storage.manifest import MANIFEST, check_manifest
from hessblocks.storage.tables import read_results
from hessblocks.training.comparison import compare

TIMINGS = {"tokens_per_second", "peak_memory", "training_time"}
SEAL = "0123456789abcdef-0123456789abcdef"
MODEL = ModelSettings(depth=2, width=16, heads=2, context=16)
SIZES = {name: one for name, one in vars(MODEL).items() if name != "blocks"}
TRAINING = TrainingSettings(
    steps=12,
    batch_size=4,
    log_every=3,
    evaluate_every=5,
    checkpoint_every=4,
    evaluation_sequences=6,
)
COMPARISON = ComparisonSettings(
    presets=("pre-ln", "sas-p"),
    model=replace(MODEL, depth=1),
    training=TRAINING,
    curvature=CurvatureSettings(sequences=2, tokens=6, probes=4),
)
ALONE = replace(COMPARISON, presets=("pre-ln",), curvature=None)
"""One run without its maps, which take most of the time."""


def numbers(folder: Path) -> tuple[list[Any], list[Any]]:
    """All losses of metrics.jsonl, and all rows of results.csv but timings, digit for digit."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timed = {"seconds", "tokens_per_second", "seal"}  # of earlier versions
    losses = [{name: line[name] for name in line if name not in timed} for line in lines]
    rows = [row for row in read_results(folder / "results.csv") if row.quantity not in TIMINGS]
    return losses, rows


def with_seals(out: Path) -> Path:
    """The folder as the versions wrote it that sealed every line, row and manifest."""
    for path in out.rglob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line | {"seal": SEAL}) + "\n" for line in lines))
    for path in out.rglob("results.csv"):
        head, *rows = path.read_text().splitlines()
        path.write_text(
            "".join(f"{row}\n" for row in (f"{head},seal", *(f"{r},{SEAL}" for r in rows)))
        )
    for path in out.rglob(MANIFEST):
        found = json.loads(path.read_text())
        found["progress"]["lines"] = {"metrics.jsonl": SEAL, "observations.jsonl": ""}
        path.write_text(json.dumps(found | {"seal": SEAL}))
    return out


def unsealed(out: Path) -> Path:
    """The folder as the first versions wrote it, whose manifests named neither run nor folder."""
    for path in out.rglob(MANIFEST):
        found = json.loads(path.read_text())
        step = path.parent.name.rpartition("-")[2]
        progress = {"step": int(step), "seconds": 1.0} if step.isdigit() else {}
        path.write_text(json.dumps({"files": found["files"], "progress": progress}))
    return out


def files(folder: Path) -> list[str]:
    """All files below a folder."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def complete(corpus: Corpus, out: Path, settings: ComparisonSettings = COMPARISON) -> None:
    """Run the comparison, or what is left of it; any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(settings, corpus, out, Progress())


def in_process_of_its_own(work: Callable[[], None]) -> multiprocessing.Process:
    """Start the work in a forked process, which needs no time to import anything."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


class _Killed(Progress):
    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def step(self, count: int, loss: float | None) -> None:
        if count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_at_step(work: Callable[[Progress], object], step: int) -> None:
    """Train in a process that is killed when it tells of this step."""
    process = in_process_of_its_own(lambda: work(_Killed(step)) and None)
    process.join(600)
    assert process.exitcode == -signal.SIGKILL


def killed_at_write(work: Callable[[], None], moment: int) -> bool:
    """Do the work in a process that is killed just before its n-th change of the disk.

    Returns:
        Whether it was killed; False when it ended before that moment.
    """

    def doomed() -> None:
        count = 0

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if not _changes_the_disk(event, arguments):
                return
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        work()

    process = in_process_of_its_own(doomed)
    process.join(600)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _changes_the_disk(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "open":
        _, mode, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if isinstance(flags, int) else 0
        return bool(writes) or any(letter in str(mode) for letter in "wax+")
    return event in {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}


def listed_anew(checkpoint: Path) -> None:
    """The manifest says that all is as it was written, as its maker can have it."""
    listed = json.loads((checkpoint / MANIFEST).read_text())
    listed["files"] = {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in checkpoint.iterdir()
        if path.name != MANIFEST
    }
    (checkpoint / MANIFEST).write_text(json.dumps(listed))
    assert check_manifest(checkpoint) == ""
