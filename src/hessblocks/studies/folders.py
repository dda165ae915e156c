"""What a folder of studies was asked for, and its files brought up to date without measuring."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage import held, write_json
from hessblocks.studies.catalogue import find, names
from hessblocks.studies.engine import Store, opened, write_outputs

CONFIG = "config.json"


def remember(out: Path, studies: Iterable[str], scale: str, seeds: int | None) -> None:
    """Write into `out`/config.json that `studies` were asked for, besides those of before.

    Raises:
        ArgumentError: the folder is that of another command, or of one study.
        RunError: the file cannot be written.
    """
    before = _asked_before(out)
    now = {name: {"scale": scale, "seeds": seeds} for name in studies}
    write_json(out / CONFIG, {"command": "reproduce", "studies": {**before, **now}})


def _asked_before(out: Path) -> dict[str, Any]:
    """The studies of config.json; none where it is damaged, since each study has its own."""
    try:
        config = _config(out) if (out / CONFIG).exists() else {"studies": {}}
    except RunError:
        warnings.warn(
            f"{out / CONFIG} is damaged and written anew; studies without points are forgotten",
            stacklevel=4,
        )
        return {}
    if "study" in config:
        raise ArgumentError(
            f"--out: {out} is the folder of the study {config['study']} alone; give the one that holds it."
        )
    if not isinstance(config.get("studies"), dict):
        raise ArgumentError(
            f"--out: {out} holds what another command wrote; choose another folder."
        )
    found: dict[str, Any] = config["studies"]
    return found


def is_study_folder(folder: Path) -> bool:
    """Whether `hessblocks reproduce` wrote `folder`, be it of one study or of several.

    Returns:
        True where it did; False also for a folder that is not there.

    Raises:
        OSError: it cannot be read.
    """
    return any(map(_is_one_study, [folder, *_inside(folder)])) or "studies" in _config(folder)


@contextlib.contextmanager
def refreshed(folder: Path) -> Iterator[None]:
    """Hold `folder` with its results.csv, summary.json and figure.json made anew from finished points.

    A command that was killed leaves points behind that those files do not count yet.

    Args:
        folder: of one study, or holding folders of studies; studies that this version does not know
            stay as they are.

    Raises:
        RunError: a command is writing there, a newer version wrote it, or a file is damaged.
    """
    if _is_one_study(folder):
        with opened(folder) as store:
            _refresh(folder, store)
            yield
        return
    with held(folder):
        for path in filter(_is_one_study, _inside(folder)):
            with opened(path) as store:
                _refresh(path, store)
        yield


def _refresh(folder: Path, store: Store) -> None:
    config = _config(folder)
    if config["study"] not in names():
        return
    study = find(config["study"])
    try:
        points = study.points(config["scale"], config["seeds"])
    except (ArgumentError, KeyError, TypeError) as error:
        raise RunError(
            f"{folder / CONFIG}: damaged; run the same `hessblocks reproduce` again."
        ) from error
    write_outputs(study, points, store)


def _is_one_study(folder: Path) -> bool:
    return "study" in _config(folder)


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _config(folder: Path) -> dict[str, Any]:
    """What config.json holds; nothing where there is none, or no mapping."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except ValueError as error:
        raise RunError(f"{path}: damaged; run the same `hessblocks reproduce` again.") from error
