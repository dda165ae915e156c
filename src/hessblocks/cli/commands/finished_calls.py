"""Compare a call with those that have finished, by digests of what they read and wrote."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from hessblocks.data import user_files
from hessblocks.errors import ArgumentError, RunError
from hessblocks.settings import BUILT_IN
from hessblocks.storage import HOLDER, LOCK, environment, read_object, sha256, weight_files

FINISHED = "finished.json"
"""Note in a run folder of a finished call: what it depends on, what it wrote and what it said."""
MODELS, TEXTS = ("source", "model", "merge", "against", "original"), ("data", "also")
"""Arguments that may be paths."""
PACKAGE, GGUF = Path(__file__).parents[2], ("gguf", "libgguf")


def described_call(command: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a call by what its results depend on; empty if a file is not at hand."""
    named = {name: given.get(name) for name in (*MODELS, *TEXTS)}
    paths = {name: Path(path) for name, path in named.items() if path and path not in BUILT_IN}
    with suppress(OSError, ArgumentError, RunError):
        if all(path.exists() for path in paths.values()):  # else in a cache, or a preset
            packages = [each.version for name in GGUF for each in distributions(name=name)]
            code = {"commit": user_files(PACKAGE).fingerprint, "gguf": packages}
            read = {name: _read(path, name in TEXTS) for name, path in paths.items()}
            call = {"command": command, "given": given, "read": read, **environment(), **code}
            return dict(json.loads(json.dumps(call, default=str)))
    return {}


def answers(folder: Path, call: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Tell whether a folder has the note of an equal call, and all that it wrote is as it was."""
    with suppress(OSError, RunError):
        note = read_object(folder / FINISHED)
        whole = isinstance(note.get("said"), list) and note.get("call") == call
        return whole and note.get("wrote") == written(folder, given)
    return False


def written(folder: Path, given: Mapping[str, Any]) -> dict[str, str]:
    """Compute the digests of what a call wrote; an OSError says that FILE is missing."""
    files = set(folder.rglob("*")) - {folder / name for name in (FINISHED, LOCK, HOLDER)}
    if "file" in given:
        (file := Path(given["file"])).stat()
        files |= {file, *file.rglob("*")}
    return _digests(files)


def _read(path: Path, is_text: bool) -> Any:
    """Compute the digest of a text, or those of a model: of what lies directly in its folders."""
    if is_text:
        return user_files(path).fingerprint
    places = [place for place in (path, path / "model") if place.is_dir()]
    files = (file for place in places for file in (*place.iterdir(), *weight_files(place)))
    return _digests({path, *files})


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """Compute the SHA-256 of the files among paths."""
    return {str(path): sha256(path) for path in sorted(paths) if path.is_file()}
