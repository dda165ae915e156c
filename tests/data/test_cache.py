"""The cache: built once, verified at each use, rebuilt (and said) when damaged or out of date."""

import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from hessblocks.data.corpus import CacheWarning, cache_root, cached
from hessblocks.errors import RunError
from hessblocks.storage import MANIFEST

KEY = {"version": 1}


def build(folder: Path) -> dict[str, int]:
    (folder / "a.bin").write_bytes(b"12345")
    (folder / "b.bin").write_bytes(b"")
    return {"bytes": 5}


def forbidden(folder: Path) -> dict[str, int]:
    raise AssertionError("built although it was there")


def flip(path: Path) -> None:
    path.write_bytes(b"12346")


def shorten(path: Path) -> None:
    path.write_bytes(b"1234")


def garble_manifest(path: Path) -> None:
    (path.parent / MANIFEST).write_text("{")


def empty_manifest(path: Path) -> None:
    (path.parent / MANIFEST).write_text("[]")


def test_a_whole_entry_is_not_built_again(cache: Path) -> None:
    first = cached("entry", KEY, build)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cached("entry", KEY, forbidden) == first
    assert (first.folder / "a.bin").read_bytes() == b"12345"
    assert first.manifest["progress"]["contents"] == {"bytes": 5}


@pytest.mark.parametrize(
    "damage",
    [flip, shorten, Path.unlink, garble_manifest, empty_manifest],
    ids=lambda f: f.__name__,
)
def test_a_damaged_entry_is_rebuilt_and_reported(
    cache: Path, damage: Callable[[Path], None]
) -> None:
    damage(cached("entry", KEY, build).folder / "a.bin")
    with pytest.warns(CacheWarning, match="cache: entry (has|lacks) .*; building it again"):
        again = cached("entry", KEY, build)
    assert (again.folder / "a.bin").read_bytes() == b"12345"


def test_an_entry_from_another_key_is_rebuilt_and_reported(cache: Path) -> None:
    cached("entry", KEY, build)
    with pytest.warns(CacheWarning, match="entry is of another version"):
        cached("entry", {"version": 2}, build)
    cached("entry", {"version": 2}, forbidden)


def test_a_build_that_fails_leaves_nothing(cache: Path) -> None:
    def failing(folder: Path) -> dict[str, int]:
        (folder / "a.bin").write_bytes(b"1")
        raise RunError("no")

    with pytest.raises(RunError, match="no"):
        cached("entry", KEY, failing)
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_what_a_killed_build_left_is_removed(cache: Path) -> None:
    left = cache / ".entry.partial-0123"
    left.mkdir(parents=True)
    cached("entry", KEY, build)
    assert not left.exists()


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(RunError, match="HESSBLOCKS_CACHE"):
        cached("entry", KEY, build)


def slow_build(folder: Path) -> dict[str, int]:
    with (folder.parent / "builds").open("a") as log:
        log.write(f"{os.getpid()}\n")
    time.sleep(0.3)
    return build(folder)


def ask(root: Path) -> None:
    os.environ["HESSBLOCKS_CACHE"] = str(root)
    assert json.loads((cached("entry", KEY, slow_build).folder / MANIFEST).read_text())


def test_two_processes_at_once_build_once(cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=ask, args=(cache,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len((cache / "builds").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HESSBLOCKS_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/hessblocks"),
        ({"HOME": "/home/someone"}, "/home/someone/.cache/hessblocks"),
    ],
)
def test_the_root_follows_the_environment(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HESSBLOCKS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(expected)
