"""Manifests of folders: the fault, if there is one; what is set aside or half-written."""

import json
from pathlib import Path

import pytest

from hessblocks.errors import ArgumentError
from hessblocks.storage.files import remove_partials, set_aside
from hessblocks.storage.manifest import (
    check_manifest,
    held,
    identity_of,
    remembered_in,
    write_manifest,
)

OURS, THEIRS = identity_of({"seed": 0}), identity_of({"seed": 1})


def test_the_identity_is_that_of_the_values_and_not_of_their_order() -> None:
    assert identity_of({"a": 1, "b": [2.5]}) == identity_of({"b": (2.5,), "a": 1})
    assert identity_of({"a": 1}) != identity_of({"a": 2})
    assert len(OURS) == 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint-4"
    made.mkdir()
    (made / "weights").write_text("w")
    write_manifest(made, OURS, "checkpoint-4", {"step": 4})
    return made


def test_a_folder_with_a_manifest_is_whole_and_remembers(folder: Path) -> None:
    assert check_manifest(folder, OURS, "checkpoint-4") == ""
    assert check_manifest(folder) == ""
    assert remembered_in(folder) == {"step": 4}
    assert remembered_in(folder / "x") == {}


def test_a_card_may_be_written_and_edited_beside_the_files(folder: Path) -> None:
    (folder / "README.md").write_text("a")
    assert check_manifest(folder, OURS, "checkpoint-4") == ""
    write_manifest(folder, OURS, "checkpoint-4", {"step": 4})
    (folder / "README.md").write_text("b")
    assert check_manifest(folder, OURS, "checkpoint-4") == ""


def test_hidden_files_beside_the_others_are_nobodys(folder: Path) -> None:
    for name in (".DS_Store", ".hessblocks.lock"):
        (folder / name).touch()
    assert check_manifest(folder, OURS, "checkpoint-4") == ""


def test_a_folder_with_a_manifest_is_not_held(folder: Path) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(ArgumentError, match="is a saved model or a checkpoint"), held(folder):
        pass
    assert sorted(folder.iterdir()) == before


def edit_manifest(folder: Path, **changed: object) -> None:
    found = json.loads((folder / "seal.json").read_text()) | changed
    kept = {name: value for name, value in found.items() if value is not None}
    (folder / "seal.json").write_text(json.dumps(kept))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "weights").write_text("x"), "has another weights"),
        (lambda folder: (folder / "weights").unlink(), "lacks its weights"),
        (lambda folder: (folder / "more").touch(), "holds more, which is not one of its files"),
        (
            lambda folder: (folder / "seal.json").write_text("[]"),
            "has a damaged seal.json",
        ),
        (lambda folder: (folder / "seal.json").unlink(), "has no seal.json"),
        (
            lambda folder: write_manifest(folder, THEIRS, "checkpoint-4", {}),
            "is of another run",
        ),
        (
            lambda folder: write_manifest(folder, OURS, "checkpoint-2", {}),
            "was checkpoint-2 when",
        ),
    ],
)
def test_a_folder_that_is_not_what_was_written(folder: Path, spoil: object, words: str) -> None:
    spoil(folder)  # type: ignore[operator]
    assert check_manifest(folder, OURS, "checkpoint-4").startswith(words)


@pytest.mark.parametrize(
    "older", [{"seal": "0123456789abcdef-0123456789abcdef"}, {"of": None, "name": None}]
)
def test_manifests_of_earlier_versions_are_read(folder: Path, older: dict[str, object]) -> None:
    edit_manifest(folder, **older)
    assert check_manifest(folder, OURS, "checkpoint-4") == ""
    (folder / "weights").write_text("x")
    assert check_manifest(folder, OURS, "checkpoint-4") == "has another weights than was written"


def test_nothing_that_is_set_aside_is_overwritten(tmp_path: Path) -> None:
    for text in ("a", "b", "c"):
        (tmp_path / "results.csv").write_text(text)
        set_aside(tmp_path / "results.csv", tmp_path)
    names = sorted(path.name for path in (tmp_path / "aside").iterdir())
    assert names == ["results.csv", "results.csv-2", "results.csv-3"]
    assert not (tmp_path / "results.csv").exists()


def test_partial_figures_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    for name in ("figures", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".loss.partial-12345678.png").touch()
        (tmp_path / name / "loss.png").touch()
    remove_partials(tmp_path, "loss")
    assert len(list(tmp_path.rglob(".*partial*"))) == 2
    with held(tmp_path):
        pass
    assert [p.parent.name for p in tmp_path.rglob(".*partial*")] == ["mine"]
    assert len(list(tmp_path.rglob("loss.png"))) == 2
