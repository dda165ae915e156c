"""Files and folders that are whole or absent."""

import os
from pathlib import Path

import pytest

from hessblocks.errors import RunError
from hessblocks.storage.files import (
    atomic_folder,
    atomic_path,
    remove_partials,
    write_json,
    write_text,
)
from tests.synced import synced_files


def test_a_file_is_replaced_whole_with_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    write_json(path, {"b": 1})
    write_json(path, {"b": 2})
    plain = tmp_path / "plain"
    plain.touch()
    assert path.read_text() == '{\n  "b": 2\n}\n'
    assert path.stat().st_mode == plain.stat().st_mode
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_who_reads_the_old_file_reads_it_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with path.open() as reader:
        write_text(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that a power cut could leave the new name with nothing behind it."""
    synced, path = synced_files(monkeypatch), tmp_path / "a.txt"
    rename = Path.replace

    def replace(temporary: Path, target: Path) -> Path:
        status = temporary.stat()
        assert (status.st_ino, status.st_size) in synced
        return rename(temporary, target)

    monkeypatch.setattr(Path, "replace", replace)
    write_text(path, "new")
    assert (path.stat().st_ino, 3) in synced


@pytest.mark.parametrize("names", [["a.txt"], ["a.txt", "b/c.txt"], ["b/c/d.txt", "e"]])
def test_the_files_of_a_folder_are_on_the_disk_before_it_has_its_name(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, path = synced_files(monkeypatch), tmp_path / "folder"
    rename, renamed = Path.rename, []

    def checked(temporary: Path, target: Path) -> Path:
        for one in (*temporary.rglob("*"), temporary):
            status = one.stat()
            assert (status.st_ino, status.st_size) in synced, one
        renamed.append(target)
        return rename(temporary, target)

    monkeypatch.setattr(Path, "rename", checked)
    with atomic_folder(path) as temporary:
        for name in names:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_text("new")
    assert renamed == [path]
    assert synced[-1][0] == tmp_path.stat().st_ino


def fail_half_way(path: Path) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        raise KeyError


def fail_half_way_in_a_folder(path: Path) -> None:
    with atomic_folder(path) as temporary:
        (temporary / "half").touch()
        raise KeyError


def test_a_failure_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(KeyError):
        fail_half_way(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_failure_keeps_the_old_folder_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for text in ("old", "older"):
        with atomic_folder(path) as temporary:
            (temporary / text).touch()
    with pytest.raises(KeyError):
        fail_half_way_in_a_folder(path)
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")] == ["a", "a/older"]


@pytest.mark.parametrize("write", [atomic_path, atomic_folder])
def test_a_full_disk_is_named(tmp_path: Path, write: object) -> None:
    with pytest.raises(RunError, match=r"a: cannot be written \(No space left on device\); free"):  # noqa: SIM117
        with write(tmp_path / "a"):  # type: ignore[operator]
            raise OSError(28, os.strerror(28))


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(RunError, match="b: cannot be written"):
        write_text(tmp_path / "a" / "b", "x")


def test_partials_of_one_name_are_removed_and_no_others(tmp_path: Path) -> None:
    names = [".sas.partial-1", ".sas.partial-2.csv", ".sas-p.partial-1", ".git", "sas"]
    for name in names:
        (tmp_path / name).touch()
    remove_partials(tmp_path, "sas")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".git", ".sas-p.partial-1", "sas"]
    remove_partials(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".git", "sas"]
