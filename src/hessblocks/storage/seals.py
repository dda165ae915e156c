"""Folders that are whole or do not count: sealed by checksums after everything is written."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

from hessblocks.errors import RunError
from hessblocks.storage.files import read_object, sync, write_json
from hessblocks.storage.identity import SEAL, Finding, identity_in, sealed, state_of

SEAL_FILE = "seal.json"
CARD = "README.md"
"""What a person may write beside a model; no seal covers it."""


class DamageWarning(UserWarning):
    """Files are not what was written, or some of them are lost."""


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, of: str, name: str, progress: dict[str, Any]) -> None:
    """Mark a folder as whole, once every file of it is on the disk.

    Args:
        folder: with every file in its place.
        of: identity of the run.
        name: that the folder has, or will have.
        progress: what to remember beside the files, as JSON values.

    Raises:
        RunError: the seal cannot be written.
    """
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name not in (SEAL_FILE, CARD):
            sync(path)
            files[path.name] = sha256(path)
    said = {"of": of, "name": name, "files": files, "progress": progress}
    write_json(folder / SEAL_FILE, sealed(of, said))
    sync(folder.parent)


def remembered_in(folder: Path) -> dict[str, Any]:
    """What was remembered beside the files of a sealed folder; empty where there is no seal.

    Returns:
        JSON values.
    """
    try:
        progress: dict[str, Any] = dict(read_object(folder / SEAL_FILE)["progress"])
    except (RunError, KeyError, TypeError, ValueError):
        return {}
    return progress


def sealed_folder(folder: Path, of: str | None = None, name: str | None = None) -> Finding:
    """What a checkpoint or a saved model is.

    Args:
        folder: sealed after it was written.
        of: whose it should be; None means anybody's.
        name: that it should have been sealed under; None means any.

    Returns:
        Whole where every file but the card is as it was and no other is there, hidden ones aside; unsealed where only
        the owner is not said.

    Cost:
        SHA-256 of all files, about a second a gigabyte.
    """
    fault = partial(Finding, path=folder)
    if not (folder / SEAL_FILE).exists():
        words = f"has no {SEAL_FILE}" if folder.is_dir() else "is absent"
        return fault(state="missing", words=words)
    try:
        found = read_object(folder / SEAL_FILE)
        files: dict[str, str] = dict(found["files"])
        files.pop(CARD, None)
        there = {path.name for path in folder.iterdir()} - {SEAL_FILE, CARD}
        for file, digest in files.items():
            if file not in there:
                return fault(state="missing", words=f"lacks its {file}")
            if sha256(folder / file) != digest:
                return fault(state="edited", words=f"has another {file} than was written")
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return fault(state="edited", words=f"has a damaged {SEAL_FILE}")
    strange = there - set(files)
    if planted := sorted(name for name in strange if not name.startswith(".")):
        return fault(state="foreign", words=f"holds {planted[0]}, which is not of it")
    if "of" not in found and {"name", SEAL} & set(found):
        return fault(state="edited", words=f"lacks its owner in {SEAL_FILE}")
    if "of" not in found:
        return fault(state="unsealed", words="does not say which run it is of")
    if of not in (None, found["of"]):
        return fault(state="foreign", words="is of another run")
    if name not in (None, found.get("name")):
        return fault(state="foreign", words=f"was {found.get('name')} when it was written")
    if (state := state_of(found, (found["of"],))) == "unsealed":
        return fault(state=state, words=f"has a {SEAL_FILE} without a seal of its own")
    if state != "whole":
        return fault(state="edited", words=f"has a {SEAL_FILE} that was edited")
    return fault(state="whole")


def sealed_in_place(folder: Path) -> Finding:
    """What a sealed folder is, and whether a model is that of the run around it, where there is one.

    Returns:
        As `sealed_folder`.

    Raises:
        RunError: config.json of that run is damaged.
    """
    run = folder.absolute().parent
    inside = folder.absolute().name == "model" and (run / "config.json").is_file()
    return sealed_folder(folder, identity_in(run) if inside else None)


def remedy(found: Finding, run: Path) -> str:
    """What to do about a model of a trained run that is not what was written.

    Args:
        found: what the model is.
        run: folder of the run.

    Returns:
        The end of a sentence, without a full stop.
    """
    if found.words.startswith("holds"):
        return "take it out and run again"
    return f"remove {run} and run again to train once more"
