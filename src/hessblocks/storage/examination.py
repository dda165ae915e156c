"""Check the files of a folder: which are missing, changed since they were written, or cannot be read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.config import read_settings, run_path
from hessblocks.storage.curvature_results import MapRow, SpectrumRow, curvature_config, group_key
from hessblocks.storage.files import read_object
from hessblocks.storage.lines import KINDS, fault_in_finished_lines, fault_in_lines
from hessblocks.storage.manifest import (
    MANIFEST,
    Finding,
    check_in_place,
    check_manifest,
    identity_in,
)
from hessblocks.storage.rows import (
    STEPS,
    ResultRow,
    SignalRow,
    is_trained,
    read_results,
    steps_done,
)
from hessblocks.storage.store import POINTS, read_store
from hessblocks.storage.tables import read_table

ABSENT = "is absent"
DAMAGED = "is damaged"
"""What is said of a file that cannot be read."""


def check_folder(folder: Path) -> tuple[Finding, ...]:
    """Check every file of a run, a comparison, a folder of `hessblocks curvature` or `signal`, or a saved model.

    Nothing is written. Models and checkpoints are compared with the SHA-256 of their files; tables and lines
    are read, and a number that was edited by hand in one of these is not noticed.

    Args:
        folder: with a config.json.

    Returns:
        One finding a file, model or checkpoint.

    Raises:
        ArgumentError: `folder` is of no such command.
        RunError: its config.json is damaged.

    Cost:
        SHA-256 of every model and checkpoint, about a second a gigabyte.
    """
    if not (folder / "config.json").is_file():
        raise ArgumentError(
            f"DIR: {folder} has no config.json; give a folder that a command wrote."
        )
    if (folder / MANIFEST).is_file():
        return (check_in_place(folder),)
    config = read_object(folder / "config.json")
    kinds = {
        "presets": _comparison,
        "preset": _run,
        "groups": _curvature,
        "models": _signal,
    }
    for name, look in kinds.items():
        if name in config and "model_type" not in config:  # which a saved model has
            return (*_about(folder), *look(folder, config))
    raise ArgumentError(f"DIR: {folder} is of no command that is known; give a run folder.")


def _run(folder: Path, config: dict[str, Any]) -> Iterator[Finding]:
    table = folder / "results.csv"
    rows: list[ResultRow] = []

    def lacking() -> str:
        rows[:] = read_results(table)
        return _lacking(rows, config)

    yield _read(table, lacking)
    saved = (folder / "model").exists() or (is_trained(rows) and not _diverged(rows))
    yield from _trained(folder, saved=saved)


def _diverged(rows: list[ResultRow]) -> bool:
    return any(row.quantity == "loss" and math.isnan(row.value) for row in rows)


def _lacking(rows: list[ResultRow], config: dict[str, Any]) -> str:
    """The steps of a run whose rows are not there."""
    diverged, done = _diverged(rows), steps_done(rows)
    wanted = STEPS if config.get("curvature") else ("begun", "trained")
    lacking = [step for step in wanted if step not in done and not (diverged and "final" in step)]
    return f"lacks {', '.join(lacking)}" if lacking else ""


def _trained(folder: Path, *, saved: bool) -> Iterator[Finding]:
    """The model, lines and checkpoints of a run; `saved`: whether there should be a model."""
    of = identity_in(folder)
    if saved:
        yield check_manifest(folder / "model", of)
    for path in (folder / name for name in KINDS):
        if path.name == "metrics.jsonl" or path.exists():
            yield _read(path, partial(fault_in_finished_lines, path))
    for path in sorted(folder.glob("checkpoints/checkpoint-*")):
        yield check_manifest(path, of, path.name)


def _comparison(folder: Path, config: dict[str, Any]) -> Iterator[Finding]:
    table, lines = folder / "results.csv", folder / "metrics.jsonl"
    yield _read(table, partial(read_results, table))
    yield _read(lines, partial(fault_in_lines, lines, torn=True))
    if config.get("match", "steps") != "steps":
        yield _object(folder / "budget.json")
    asked = read_settings(folder / "config.json")
    for preset, seed in itertools.product(asked.presets, asked.seeds):
        run = run_path(folder, preset, seed)
        if not (run / "config.json").is_file():
            yield Finding(path=run, state="missing", words=ABSENT)
            continue
        yield from (about := _about(run))
        if about[0].usable:
            yield from _run(run, read_object(run / "config.json"))


def _curvature(folder: Path, _: dict[str, Any]) -> Iterator[Finding]:
    config = curvature_config(folder)
    if not (folder / "groups").is_dir():  # where earlier versions kept them
        yield _groups(folder, config["groups"])
    asked = config["curvature"]
    tables = {"map.csv": (MapRow, "map"), "spectra.csv": (SpectrumRow, "spectrum")}
    yield _read(folder / "results.csv", partial(read_results, folder / "results.csv"))
    for name, (kind, wanted) in tables.items():
        if asked.get(wanted) or (folder / name).exists():
            yield _read(folder / name, partial(read_table, kind, folder / name))


def _groups(folder: Path, names: list[str]) -> Finding:
    """Which of the groups are stored."""

    def lacking() -> str:
        store, of = read_store(folder), identity_in(folder)
        if store.damaged:
            return f"a line of it {DAMAGED}"
        missing = [name for name in names if store.get(group_key(of, name)) is None]
        return f"lacks {len(missing)} group(s)" if missing else ""

    return _read(folder / POINTS, lacking)


def _signal(folder: Path, _: dict[str, Any]) -> Iterator[Finding]:
    yield _read(folder / "results.csv", partial(read_table, SignalRow, folder / "results.csv"))


def _about(folder: Path) -> list[Finding]:
    return [_object(folder / name) for name in ("config.json", "environment.json")]


def _object(path: Path) -> Finding:
    """What a file with one JSON object is."""
    return _read(path, partial(read_object, path))


def _read(path: Path, read: Callable[[], object]) -> Finding:
    """What a file is; `read` may return the words for what it lacks."""
    if not path.exists():
        return Finding(path=path, state="missing", words=ABSENT)
    try:
        said = read()
    except RunError:
        return Finding(path=path, state="edited", words=DAMAGED)
    if not isinstance(said, str) or not said:
        return Finding(path=path, state="whole")
    state = "edited" if said.endswith(DAMAGED) else "missing"
    return Finding(path=path, state=state, words=said)  # type: ignore[arg-type]
