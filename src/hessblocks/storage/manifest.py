"""List the SHA-256 of every file of a model or checkpoint, and check a folder against that list.

The list is written last, so that a folder with one is whole; `seal.json` is its name.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hessblocks.errors import RunError
from hessblocks.storage.files import read_object, sync, write_json

MANIFEST = "seal.json"
CARD = "README.md"
"""File beside a model that people edit; no manifest covers it."""


FORMAT = 1
"""Raised whenever files of equal configurations are written differently."""
State = Literal["whole", "foreign", "edited", "missing"]


class DamageWarning(UserWarning):
    """Files are not what was written, or some of them are lost."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """State of a file, or of a folder with a manifest."""

    path: Path
    """Place of the file, present or not."""
    state: State
    """whole, foreign, edited or missing."""
    words: str = "is whole"
    """The end of a sentence that begins with its name."""

    @property
    def usable(self) -> bool:
        """Tell whether the check found no fault."""
        return self.state == "whole"

    @property
    def sentence(self) -> str:
        """Join name and words, without a full stop."""
        return f"{self.path}{':' if self.words.startswith('its') else ''} {self.words}"


def identity_of(config: Mapping[str, Any]) -> str:
    """Digest a configuration: preset, seed, data, sizes and every other setting.

    Args:
        config: JSON values; the order of names does not count.

    Returns:
        The first 16 hexadecimal digits of a SHA-256.
    """
    text = json.dumps([FORMAT, config], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity_in(folder: Path) -> str:
    """Digest the config.json of a run folder.

    Returns:
        Sixteen digits.

    Raises:
        RunError: config.json is absent or damaged.
    """
    return identity_of(read_object(folder / "config.json"))


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, of: str, name: str, progress: dict[str, Any]) -> None:
    """Mark a folder as whole, once every file of it is on the disk.

    Args:
        folder: with every file in its place.
        of: identity of the run.
        name: that the folder has, or will have.
        progress: what to remember beside the files, as JSON values.

    Raises:
        RunError: the manifest cannot be written.
    """
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name not in (MANIFEST, CARD):
            sync(path)
            files[path.name] = sha256(path)
    said = {"of": of, "name": name, "files": files, "progress": progress}
    write_json(folder / MANIFEST, said)
    sync(folder.parent)


def remembered_in(folder: Path) -> dict[str, Any]:
    """Read the values that were stored in the manifest of a folder; empty without a manifest.

    Returns:
        JSON values.
    """
    try:
        progress: dict[str, Any] = dict(read_object(folder / MANIFEST)["progress"])
    except (RunError, KeyError, TypeError, ValueError):
        return {}
    numbers = (progress.get(name, 0) for name in ("step", "seconds", "peak_memory"))
    known = all(isinstance(number, int | float) for number in numbers)
    return progress if known and isinstance(progress.get("lines", {}), dict) else {}


def check_manifest(folder: Path, of: str | None = None, name: str | None = None) -> Finding:
    """Check a checkpoint or a saved model against its manifest.

    Args:
        folder: with a manifest.
        of: whose it should be; None means anybody's.
        name: that it should have been written under; None means any.

    Returns:
        Whole where every file but the card is as it was and no other is there, hidden ones aside. A
        manifest of an early version, which names neither run nor folder, is taken for that of any.

    Cost:
        SHA-256 of all files, about a second per gigabyte.
    """
    fault = partial(Finding, path=folder)
    if not (folder / MANIFEST).exists():
        words = f"has no {MANIFEST}" if folder.is_dir() else "is absent"
        return fault(state="missing", words=words)
    try:
        found = read_object(folder / MANIFEST)
        files: dict[str, str] = dict(found["files"])
        files.pop(CARD, None)
        there = {path.name for path in folder.iterdir()} - {MANIFEST, CARD}
        for file, digest in files.items():
            if file not in there:
                return fault(state="missing", words=f"lacks its {file}")
            if sha256(folder / file) != digest:
                return fault(state="edited", words=f"has another {file} than was written")
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return fault(state="edited", words=f"has a damaged {MANIFEST}")
    strange = there - set(files)
    if planted := sorted(name for name in strange if not name.startswith(".")):
        return fault(state="foreign", words=f"holds {planted[0]}, which is not of it")
    if of not in (None, found.get("of", of)):
        return fault(state="foreign", words="is of another run")
    if name not in (None, found.get("name", name)):
        return fault(state="foreign", words=f"was {found['name']} when it was written")
    return fault(state="whole")


def check_in_place(folder: Path) -> Finding:
    """Check a folder with a manifest, and a model against the run around it, if there is one.

    Returns:
        As `check_manifest`.

    Raises:
        RunError: config.json of that run is damaged.
    """
    run = folder.absolute().parent
    inside = folder.absolute().name == "model" and (run / "config.json").is_file()
    return check_manifest(folder, identity_in(run) if inside else None)


def remedy(found: Finding, run: Path) -> str:
    """Say what to do about a model of a trained run that is not as it was written.

    Args:
        found: what the model is.
        run: folder of the run.

    Returns:
        The end of a sentence, without a full stop.
    """
    if found.words.startswith("holds"):
        return "take it out and run again"
    return f"remove {run} and run again to train once more"
