"""Per-user cache: folders with a manifest, built once and verified at each use."""

import glob
import hashlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from hessblocks import storage
from hessblocks.errors import RunError

Build = Callable[[Path], Mapping[str, Any]]
"""Function that fills a folder and returns a description of its contents, as JSON values."""


class CacheWarning(UserWarning):
    """Warning that a cache entry was damaged or of another version, and is built again."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Cache entry: a folder whose files are verified."""

    folder: Path
    """Folder of the files."""
    manifest: Mapping[str, Any]
    """Content of seal.json: `files`, name → SHA-256, and `progress` with the `contents`."""


def cache_root() -> Path:
    """Return the cache folder: `HESSBLOCKS_CACHE`, else `hessblocks` in the user's cache folder."""
    if configured := os.environ.get("HESSBLOCKS_CACHE"):
        return Path(configured)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "hessblocks"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "hessblocks" / "cache"
    folder = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / folder / "hessblocks"


def cached(name: str, key: Mapping[str, Any], build: Build) -> Entry:
    """Open a cache entry; build it if it is missing, damaged, or made from another key.

    If several processes ask at once, one builds the entry and the others wait.

    Args:
        name: name of the folder in the cache.
        key: everything that the contents depend on, as JSON values.
        build: fills a folder and returns a description of the contents, as JSON values. The folder
            may contain files of an interrupted build (KeyboardInterrupt, a kill) of the same key.

    Returns:
        The entry, with all files verified.

    Raises:
        RunError: the cache cannot be written.

    Cost:
        SHA-256 of all files of the entry, about a second per gigabyte.
    """
    root = cache_root()
    folder = root / name
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{name}.lock"):
            if fault := storage.check_manifest(folder, storage.identity_of(key)):
                # entries of earlier versions had a manifest.json; they are replaced silently
                if folder.exists() and not (folder / "manifest.json").exists():
                    outdated = "is of another version of text or code"
                    words = outdated if fault == "is of another run" else fault
                    warnings.warn(f"cache: {name} {words}; building it again", CacheWarning, 2)
                storage.remove_partials(root, name)
                _build(folder, key, build)
    except OSError as error:
        raise RunError(
            f"cache: {root} cannot be used ({error.strerror or error}); free some space or set "
            "HESSBLOCKS_CACHE to another folder."
        ) from error
    return Entry(folder=folder, manifest=storage.read_object(folder / storage.MANIFEST))


def _build(folder: Path, key: Mapping[str, Any], build: Build) -> None:
    with storage.atomic_folder(folder) as temporary, _begun(folder, key) as begun:
        contents = build(begun)
        for path in begun.iterdir():
            path.rename(temporary / path.name)
        identity, progress = storage.identity_of(key), {"contents": contents}
        storage.write_manifest(temporary, identity, folder.name, progress)


@contextmanager
def _begun(folder: Path, key: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a folder that remains after an interruption, and is reused for the same key."""
    stem = f".{folder.name}.begun-"
    begun = folder.with_name(stem + hashlib.sha256(repr(sorted(key.items())).encode()).hexdigest())
    for stale in {*folder.parent.glob(f"{glob.escape(stem)}*")} - {begun}:
        shutil.rmtree(stale)
    begun.mkdir(exist_ok=True)
    storage.remove_partials(begun)
    try:
        yield begun
    except Exception:  # an interruption is no Exception
        shutil.rmtree(begun, ignore_errors=True)
        raise
    begun.rmdir()
