"""Check the files of a folder: find those that are missing, edited or unreadable."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage import manifest, tables
from hessblocks.storage.config import read_settings, run_path
from hessblocks.storage.curvature_results import MapRow, SpectrumRow, curvature_config, group_key
from hessblocks.storage.files import read_bytes, read_object
from hessblocks.storage.lines import KINDS, fault_in_finished_lines, fault_in_lines
from hessblocks.storage.store import POINTS, read_store
from hessblocks.storage.tensors import read_tensors

ABSENT = "is absent"
DAMAGED = "is damaged"
"""Verdict on a file that cannot be read."""
Read = Callable[[Path], object]
"""Function that reads a file; it may return a text that says what the file lacks."""
PRICES = ("bill.csv", "together.csv", "allocation.csv", "check.csv")
"""Tables of `hessblocks price`; the last two are written only with --allocate and --check."""
READERS: Mapping[str, Read] = {
    **dict.fromkeys(("config.json", "environment.json", "budget.json"), read_object),
    "summary.json": read_object,
    **dict.fromkeys((*PRICES, "removals.csv"), read_bytes),
    **dict.fromkeys(KINDS, fault_in_finished_lines),
    "results.csv": tables.read_results,
    "map.csv": partial(tables.read_table, MapRow),
    "spectra.csv": partial(tables.read_table, SpectrumRow),
}


def check_folder(folder: Path) -> tuple[manifest.Finding, ...]:
    """Check every file of a folder that a command wrote, or of a saved model.

    Nothing is written. Files of models and checkpoints are compared with their stored SHA-256.
    Tables and JSON lines are only parsed, so that an edited number in them is not noticed.

    Args:
        folder: folder with a config.json.

    Returns:
        One finding per file, model or checkpoint.

    Raises:
        ArgumentError: no known command wrote `folder`.
        RunError: config.json is damaged.

    Cost:
        SHA-256 of every model and checkpoint, about a second per gigabyte.
    """
    if not (folder / "config.json").is_file():
        raise ArgumentError(
            f"DIR: {folder} has no config.json; give a folder that a command wrote."
        )
    if (folder / manifest.MANIFEST).is_file():
        return (manifest.check_in_place(folder),)
    config = read_object(folder / "config.json")
    kinds = {"presets": _comparison, "preset": _run, "groups": _curvature, "models": _signal}
    kinds |= {"edits": _price, "fitted": _simplify}
    for name, look in kinds.items():
        if name in config and "model_type" not in config:  # a saved model has a model_type
            return (*_about(folder), *look(folder, config))
    raise ArgumentError(f"DIR: {folder} is of no command that is known; give a run folder.")


def _run(folder: Path, config: Mapping[str, Any]) -> Iterator[manifest.Finding]:
    rows: list[tables.ResultRow] = []

    def lacking(path: Path) -> str:
        rows[:] = tables.read_results(path)
        wanted = {"begun", "trained"} if not config.get("curvature") else {*tables.STEPS}
        wanted -= {"mapped-final"} if _diverged(rows) else set()
        missing = [step for step in tables.STEPS if step in wanted - tables.steps_done(rows)]
        return f"lacks {', '.join(missing)}" if missing else ""

    yield _file(folder / "results.csv", lacking)
    of = manifest.identity_in(folder)
    finished = "trained" in tables.steps_done(rows) and not _diverged(rows)
    if finished or (folder / "model").exists():
        yield manifest.check_manifest(folder / "model", of)
    for path in (folder / name for name in KINDS):
        if path.name == "metrics.jsonl" or path.exists():
            yield _file(path)
    for path in sorted(folder.glob("checkpoints/checkpoint-*")):
        yield manifest.check_manifest(path, of, path.name)


def _diverged(rows: list[tables.ResultRow]) -> bool:
    return any(row.quantity == "loss" and math.isnan(row.value) for row in rows)


def _comparison(folder: Path, config: Mapping[str, Any]) -> Iterator[manifest.Finding]:
    yield _file(folder / "results.csv")
    yield _file(folder / "metrics.jsonl", partial(fault_in_lines, torn=True))
    if config.get("match", "steps") != "steps":
        yield _file(folder / "budget.json")
    asked = read_settings(folder / "config.json")
    for preset, seed in itertools.product(asked.presets, asked.seeds):
        run = run_path(folder, preset, seed)
        if not (run / "config.json").is_file():
            yield manifest.Finding(path=run, state="missing", words=ABSENT)
            continue
        yield from (about := _about(run))
        if about[0].usable:
            yield from _run(run, read_object(run / "config.json"))


def _curvature(folder: Path, _: Mapping[str, Any]) -> Iterator[manifest.Finding]:
    config = curvature_config(folder)

    def lacking(_: Path) -> str:
        store, of = read_store(folder), manifest.identity_in(folder)
        missing = [name for name in config["groups"] if store.get(group_key(of, name)) is None]
        if store.damaged:
            return f"a line of it {DAMAGED}"
        return f"lacks {len(missing)} group(s)" if missing else ""

    yield _file(folder / POINTS, lacking)
    yield _file(folder / "results.csv")
    for name, wanted in (("map.csv", "map"), ("spectra.csv", "spectrum")):
        if config["curvature"].get(wanted) or (folder / name).exists():
            yield _file(folder / name)


def _signal(folder: Path, _: Mapping[str, Any]) -> Iterator[manifest.Finding]:
    yield _file(folder / "results.csv", partial(tables.read_table, tables.SignalRow))


def _price(folder: Path, config: Mapping[str, Any]) -> Iterator[manifest.Finding]:
    unasked = {"allocation.csv": not config.get("allocate"), "check.csv": not config.get("check")}
    drawn = manifest.identity_of({n: one for n, one in config.items() if n != "allocate"})
    yield _file(folder / "draws.safetensors", partial(read_tensors, of=drawn))
    for name in ("summary.json", *(table for table in PRICES if not unasked.get(table))):
        yield _file(folder / name)


def _simplify(folder: Path, config: Mapping[str, Any]) -> Iterator[manifest.Finding]:
    def lacking(_: Path) -> str:
        return f"a line of it {DAMAGED}" if read_store(folder).damaged else ""

    yield _file(folder / POINTS, lacking)
    for name in ("summary.json", "removals.csv"):
        yield _file(folder / name)
    if config.get("save"):
        yield manifest.check_manifest(folder / "model", manifest.identity_in(folder))


def _about(folder: Path) -> list[manifest.Finding]:
    return [_file(folder / name) for name in ("config.json", "environment.json")]


def _file(path: Path, read: Read | None = None) -> manifest.Finding:
    """Check a file by reading it, by default with the reader for its name."""
    if not path.exists():
        return manifest.Finding(path=path, state="missing", words=ABSENT)
    try:
        answer = (read or READERS[path.name])(path)
    except RunError:
        return manifest.Finding(path=path, state="edited", words=DAMAGED)
    if not isinstance(answer, str) or not answer:
        return manifest.Finding(path=path, state="whole")
    return manifest.Finding(
        path=path, state="edited" if answer.endswith(DAMAGED) else "missing", words=answer
    )
