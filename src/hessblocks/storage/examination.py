"""What of a run folder is whole, foreign, edited or missing, from its files alone."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError
from hessblocks.settings import with_defaults
from hessblocks.storage.config import differences, read_settings
from hessblocks.storage.curvature_results import least_rows
from hessblocks.storage.files import file_of, read_object, set_aside
from hessblocks.storage.identity import SAID, Finding, State, identity_in, identity_of_all, state_of
from hessblocks.storage.lines import SHORT, last_seal, line_states
from hessblocks.storage.rows import STEPS, is_trained, read_results, steps_done
from hessblocks.storage.seals import (
    SEAL_FILE,
    DamageWarning,
    remembered_in,
    sealed_folder,
    sealed_in_place,
)
from hessblocks.storage.tables import table_states

ABSENT = "is absent"
DAMAGED = "is damaged"
"""What is said of a file that cannot be read."""
LACKS = "lacks rows"
"""What is said of a table or of lines that others show to have been longer."""
_SEAL = re.compile("[0-9a-f]{16}-[0-9a-f]{16}")
LINES = ("metrics.jsonl", "observations.jsonl")
WORDS: dict[str, str] = {**SAID, "unsealed": "has no seal, as older versions wrote it"}
"""What is said of the first line that is not whole, the worst state first."""


def check_folder(folder: Path) -> tuple[Finding, ...]:
    """Look over every file of a run, a comparison, or a folder of `hessblocks curvature` or `signal`; or a sealed model.

    Nothing is written. Files of another run are `foreign`, what was changed since is `edited`, what an older
    version wrote without saying whose it is is `unsealed`.

    Args:
        folder: with a config.json.

    Returns:
        One finding a file or sealed folder.

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
    if (folder / SEAL_FILE).is_file():
        return (sealed_in_place(folder),)
    config = read_object(folder / "config.json")
    kinds = {
        "presets": _comparison,
        "preset": _run,
        "groups": _curvature,
        "models": _signal,
        "classes": _finetuned,
    }
    for name, look in kinds.items():
        if name in config and "model_type" not in config:  # which a saved model has
            return (*_about(folder), *look(folder, config))
    raise ArgumentError(f"DIR: {folder} is of no command that is known; give a run folder.")


def mended(folder: Path, findings: Iterable[Finding], remedy: str) -> None:
    """Say which files are edited or foreign, and move them to `folder`/aside, so that they are made anew.

    Args:
        folder: that this process holds.
        findings: of its files.
        remedy: what happens then, such as "measured again".

    Raises:
        RunError: a file cannot be moved.

    Warns:
        DamageWarning: names each file.
    """
    for finding in findings:
        if finding.state in SAID:
            kept = set_aside(finding.path, folder)
            message = f"{finding.sentence}; it is kept in {kept.parent} and {remedy}"
            warnings.warn(message, DamageWarning, stacklevel=4)


def _run(folder: Path, config: dict[str, Any]) -> Iterator[Finding]:
    of = identity_in(folder)
    table, rows = _table(folder / "results.csv", (of,)), []
    try:
        rows = read_results(table.path)
    except RunError:
        table = _unreadable(table.path)
    diverged = any(row.quantity == "loss" and math.isnan(row.value) for row in rows)
    wanted = STEPS if config.get("curvature") else ("begun", "trained")
    done = steps_done(rows, {row.group for row in rows if row.group} or {""})
    lacking = [step for step in wanted if step not in done and not (diverged and "final" in step)]
    if table.usable and lacking:
        table = Finding(path=table.path, state="missing", words=f"lacks {', '.join(lacking)}")
    yield table
    saved = (folder / "model").exists() or (is_trained(rows) and not diverged)
    yield from _trained(folder, of, saved=saved)


def _finetuned(folder: Path, _: dict[str, Any]) -> Iterator[Finding]:
    yield from _trained(folder, identity_in(folder), saved=True)


def _trained(folder: Path, of: str, *, saved: bool) -> Iterator[Finding]:
    """The model, lines and checkpoints of a run; `saved`: whether there should be a model."""
    ended: dict[str, str] = {}
    if saved:
        model = sealed_folder(folder / "model", of)
        yield model
        ended = remembered_in(model.path).get("lines", {}) if model.state == "whole" else {}
    for name in LINES:
        if name == "metrics.jsonl" or ended.get(name) or (folder / name).exists():
            yield _lines(folder / name, (of,), ended.get(name))
    for path in sorted(folder.glob("checkpoints/checkpoint-*")):
        yield sealed_folder(path, of, path.name)


def _comparison(folder: Path, config: dict[str, Any]) -> Iterator[Finding]:
    asked = read_settings(folder / "config.json")
    runs = {
        folder / "runs" / f"{preset}-seed{seed}": (preset, seed)
        for preset, seed in itertools.product(asked.presets, asked.seeds)
    }
    yield from gathered(folder, [*runs])
    steps: dict[str, Any] = {}
    if config.get("match", "steps") != "steps":
        budget, steps = _budget(folder / "budget.json", config)
        yield budget
    for path, (preset, seed) in runs.items():
        if not (path / "config.json").is_file():
            yield Finding(path=path, state="missing", words=ABSENT)
            continue
        found = read_object(path / "config.json")
        one, *others = _about(path)
        if words := _another(config, found, preset, seed, steps):
            one = Finding(path=one.path, state="foreign", words=words)
        yield from (one, *others)
        for finding in _run(path, found):
            name = finding.path.name
            lost = name == "results.csv" and _lost(folder / name, finding.path, back=True)
            yield _short(finding, lost and finding.usable)
    for path in sorted(folder.glob("runs/*")):
        if path not in runs and not path.name.startswith("."):
            yield Finding(path=path, state="foreign", words="is no run of this comparison")


def _another(
    config: dict[str, Any], run: dict[str, Any], preset: str, seed: int, steps: dict[str, Any]
) -> str:
    """Why a run is not the one that a comparison asks for; empty where it is."""
    if (run.get("preset"), run.get("seed")) != (preset, seed):
        return f"is of {run.get('preset')}, seed {run.get('seed')}"
    asked = {**with_defaults(config), "preset": preset, "seed": seed}
    asked = {name: one for name, one in asked.items() if name not in ("presets", "seeds", "match")}
    if preset in steps and isinstance(asked.get("training"), dict):
        asked["training"] = {**asked["training"], "steps": steps[preset]}
    found = differences(asked, with_defaults(run))
    return f"has other settings than the comparison ({'; '.join(found)})" if found else ""


def _budget(path: Path, config: dict[str, Any]) -> tuple[Finding, dict[str, Any]]:
    """What budget.json is, and the steps of each preset that it says."""
    try:
        found = read_object(path)
    except RunError:
        return _unreadable(path), {}
    steps = found.get("steps")
    state = state_of(found, (identity_of_all(config),))
    return _finding(path, [state]), steps if isinstance(steps, dict) else {}


def gathered(folder: Path, runs: Sequence[Path]) -> Iterator[Finding]:
    """What the files of a comparison are that are gathered from its runs.

    Args:
        folder: of the comparison.
        runs: folders of all its runs, begun or not.
    """
    begun = all((run / "config.json").is_file() for run in runs)
    owners = [identity_in(run) for run in runs] if begun else []
    trained = [run for run in runs if _is_trained(run)]
    for name, look in (("results.csv", _table), *((name, _lines) for name in LINES)):
        path = folder / name
        if name != "observations.jsonl" or any((one / name).exists() for one in (folder, *trained)):
            found = look(path, owners)
            lost = found.usable and any(_lost(path, run / name) for run in trained)
            yield _short(found, lost)


def _is_trained(run: Path) -> bool:
    with contextlib.suppress(RunError):
        return is_trained(read_results(run / "results.csv"))
    return False


def _lost(path: Path, run: Path, *, back: bool = False) -> bool:
    """Whether a gathered file lacks rows or lines that the run's file has; `back`: the other way round."""
    of = identity_in(run.parent)
    own, theirs = ({one for one in _seals(file) if one.startswith(of)} for file in (run, path))
    return bool(theirs - own if back else own - theirs)


def _seals(path: Path) -> set[str]:
    return set(_SEAL.findall(path.read_text("utf-8", "replace"))) if path.is_file() else set()


def _curvature(folder: Path, config: dict[str, Any]) -> Iterator[Finding]:
    of = identity_in(folder)
    files = {folder / "groups" / file_of(name): name for name in config["groups"]}
    records: dict[str, dict[str, Any]] = {}
    sealed = False
    for path, name in files.items():
        found, record = _group(path, name, of)
        if found.state == "unsealed" and (sealed or "loss" in record):
            found = replace(found, state="edited", words="lost its seal")
        sealed = sealed or found.state == "whole"
        if found.usable:
            records[name] = record
        yield found
    for path in sorted(folder.glob("groups/*.json")):
        if path not in files:
            yield Finding(path=path, state="foreign", words="is no group of this run")
    for name, least in least_rows(config["groups"], records).items():
        path = folder / name
        if name == "results.csv" or least or path.exists():
            found = _table(path, (of,))
            short = found.state == "whole" and len(table_states(path)) < least
            yield _short(found, short)


def _group(path: Path, name: str, of: str) -> tuple[Finding, dict[str, Any]]:
    try:
        record = read_object(path)
    except RunError:
        return _unreadable(path), {}
    if record.get("group") != name:
        words = f"is of the group {record.get('group')}"
        return Finding(path=path, state="foreign", words=words), {}
    return _finding(path, [state_of(record, (of,))]), record


def _signal(folder: Path, config: dict[str, Any]) -> Iterator[Finding]:
    found = _table(folder / "results.csv", (identity_in(folder),))
    short = found.state == "whole" and len(table_states(found.path)) < config.get("rows", 1)
    yield _short(found, short)


def _about(folder: Path) -> Iterator[Finding]:
    for path in (folder / "config.json", folder / "environment.json"):
        try:
            read_object(path)
            yield Finding(path=path, state="whole")
        except RunError:
            yield _unreadable(path)


def _table(path: Path, owners: Collection[str]) -> Finding:
    if not path.exists():
        return _unreadable(path)
    try:
        return _finding(path, table_states(path, owners), "row")
    except RunError:
        return _unreadable(path)


def _lines(path: Path, owners: Collection[str], ended: str | None = None) -> Finding:
    """What a file of lines is; `ended` is the seal that its last line had when training was over."""
    if not path.exists():
        return _unreadable(path)
    try:
        found = _finding(path, [state for _, _, state in line_states(path, owners)], "line")
    except RunError:
        return _unreadable(path)
    if found.state == "whole" and ended is not None and last_seal(path) != ended:
        return Finding(path=path, state="missing", words=SHORT)
    return found


def _finding(path: Path, states: Sequence[State], part: str = "") -> Finding:
    """The finding on a file with parts of these states."""
    for state, words in WORDS.items():
        if state in states:
            first = f"its {part} {states.index(state) + 1} " if part else ""
            return Finding(path=path, state=state, words=first + words)  # type: ignore[arg-type]
    return Finding(path=path, state="whole")


def _short(found: Finding, lost: bool) -> Finding:
    return replace(found, state="missing", words=LACKS) if lost else found


def _unreadable(path: Path) -> Finding:
    if path.exists():
        return Finding(path=path, state="edited", words=DAMAGED)
    return Finding(path=path, state="missing", words=ABSENT)
