"""Seals of lines, rows and folders: whole, foreign, edited, unsealed."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from hessblocks.errors import ArgumentError
from hessblocks.storage.files import remove_partials, set_aside
from hessblocks.storage.identity import identity_of, sealed, state_of
from hessblocks.storage.lines import append_line, fault_in_lines, line_states, read_lines
from hessblocks.storage.locks import held
from hessblocks.storage.rows import ResultRow, read_results, seal_rows, write_results
from hessblocks.storage.seals import remembered_in, seal, sealed_folder
from hessblocks.storage.tables import table_states

OURS, THEIRS = identity_of({"seed": 0}), identity_of({"seed": 1})


def test_the_identity_is_that_of_the_values_and_not_of_their_order() -> None:
    assert identity_of({"a": 1, "b": [2.5]}) == identity_of({"b": (2.5,), "a": 1})
    assert identity_of({"a": 1}) != identity_of({"a": 2})
    assert len(OURS) == 16


def test_a_line_is_whole_until_a_value_is_changed() -> None:
    line = json.loads(json.dumps(sealed(OURS, {"loss": 0.1, "step": 3})))
    assert state_of(line, (OURS,)) == state_of(line) == "whole"
    assert state_of(line, (THEIRS,)) == "foreign"
    assert state_of(line | {"loss": 0.2}, (OURS,)) == "edited"
    assert state_of(line | {"more": 0.2}, (OURS,)) == "edited"
    assert state_of({"loss": 0.1}, (OURS,)) == "unsealed"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for step in range(4):
        append_line(tmp_path / "metrics.jsonl", {"step": step, "loss": float("nan")}, OURS)
    return tmp_path / "metrics.jsonl"


def states(path: Path, *owners: str) -> str:
    return " ".join(state for _, _, state in line_states(path, owners))


def test_lines_follow_each_other(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    assert states(path, OURS) == "whole whole whole whole"
    assert states(path, THEIRS) == "foreign foreign foreign foreign"
    for changed, expected in (
        ([lines[0], *lines[2:]], "whole edited whole"),
        ([lines[0], lines[2], lines[1], lines[3]], "whole edited edited edited"),
        ([*lines[:2], '{"step": 1}\n', *lines[2:]], "whole whole edited whole whole"),
        (['{"step": 1}\n'], "unsealed"),
    ):
        path.write_text("".join(changed))
        assert states(path, OURS) == expected


def test_lines_of_several_runs_follow_their_own(path: Path) -> None:
    append_line(path.with_name("other"), {"step": 0}, THEIRS)
    path.write_text(path.read_text() + path.with_name("other").read_text())
    assert states(path) == states(path, OURS, THEIRS) == "whole whole whole whole whole"
    assert states(path, OURS).endswith("whole foreign")


def test_reading_ends_before_a_line_that_is_not_whole(path: Path) -> None:
    path.write_text(path.read_text().replace('"step": 2', '"step": 9'))
    assert [line["step"] for line in read_lines(path, OURS)] == [0, 1]
    assert len(read_lines(path)) == 4
    assert fault_in_lines(path, OURS, torn=False) == "its line 3 was edited"
    path.write_text('{"step')
    assert fault_in_lines(path, OURS, torn=False) == ""
    assert fault_in_lines(path, OURS, torn=True) == "its line 1 is damaged"


def test_rows_keep_their_seal_when_they_are_written_again(tmp_path: Path) -> None:
    row = ResultRow(preset="sas", seed=0, quantity="loss", value=12.0, method="measured")
    path = tmp_path / "results.csv"
    write_results(path, seal_rows([row, replace(row, stage="final")], OURS))
    before = path.read_bytes()
    write_results(path, read_results(path))
    assert path.read_bytes() == before
    assert table_states(path, (OURS,)) == ["whole", "whole"]
    assert table_states(path, (THEIRS,)) == ["foreign", "foreign"]
    path.write_text(path.read_text().replace("12.0", "13.0", 1))
    assert table_states(path, (OURS,)) == ["edited", "whole"]


def test_a_row_that_is_there_twice_or_lost_its_seal_was_edited(tmp_path: Path) -> None:
    def row(quantity: str, seed: int = 0) -> ResultRow:
        return ResultRow(preset="sas", seed=seed, quantity=quantity, value=1.0, method="measured")

    path = tmp_path / "results.csv"
    rows = seal_rows([row("parameters"), row("loss"), row("training_time")], OURS)
    write_results(path, [*rows, rows[1]])
    assert table_states(path, (OURS,)) == ["whole", "whole", "whole", "edited"]
    write_results(path, [rows[0], replace(rows[1], seal=""), rows[2]])
    assert table_states(path, (OURS,)) == ["whole", "edited", "whole"]
    older = [row("parameters"), row("flops")]
    write_results(path, [*older, *rows[1:], row("loss", seed=1)])
    found = ["unsealed", "unsealed", "whole", "whole", "unsealed"]
    assert (
        table_states(path, (OURS,)) == found
    )  # gone on with, and a run of an older version beside


def test_a_table_without_seals_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    with path.open("w", newline="") as file:
        names = ["preset", "seed", "stage", "quantity", "layer", "group", "role", "part", "value", "standard_error", "method"]  # fmt: skip
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerow({"preset": "sas", "seed": 0, "quantity": "loss", "value": 1, "method": "measured"})  # fmt: skip
    assert read_results(path)[0].seal == ""
    assert table_states(path, (OURS,)) == ["unsealed"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint-4"
    made.mkdir()
    (made / "weights").write_text("w")
    seal(made, OURS, "checkpoint-4", {"step": 4})
    return made


def test_a_sealed_folder_is_whole_and_remembers(folder: Path) -> None:
    assert sealed_folder(folder, OURS, "checkpoint-4").state == "whole"
    assert sealed_folder(folder).state == "whole"
    assert remembered_in(folder) == {"step": 4}
    assert remembered_in(folder / "x") == {}


def test_a_card_may_be_written_and_edited_beside_sealed_files(folder: Path) -> None:
    (folder / "README.md").write_text("a")
    assert sealed_folder(folder, OURS, "checkpoint-4").state == "whole"
    seal(folder, OURS, "checkpoint-4", {"step": 4})
    (folder / "README.md").write_text("b")
    assert sealed_folder(folder, OURS, "checkpoint-4").state == "whole"


def test_hidden_files_beside_sealed_ones_are_nobodys(folder: Path) -> None:
    for name in (".DS_Store", ".hessblocks.lock"):
        (folder / name).touch()
    assert sealed_folder(folder, OURS, "checkpoint-4").state == "whole"


def test_a_sealed_folder_is_not_held(folder: Path) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(ArgumentError, match="is a saved model or a checkpoint"), held(folder):
        pass
    assert sorted(folder.iterdir()) == before


def edit_seal(folder: Path, **changed: object) -> None:
    found = json.loads((folder / "seal.json").read_text()) | changed
    kept = {name: value for name, value in found.items() if value is not None}
    (folder / "seal.json").write_text(json.dumps(kept))


@pytest.mark.parametrize(
    ("spoil", "state", "words"),
    [
        (lambda folder: (folder / "weights").write_text("x"), "edited", "has another weights"),
        (lambda folder: (folder / "weights").unlink(), "missing", "lacks its weights"),
        (lambda folder: (folder / "more").touch(), "foreign", "holds more, which is not of it"),
        (lambda folder: (folder / "seal.json").write_text("[]"), "edited", "has a damaged seal"),
        (
            lambda folder: edit_seal(folder, progress={"step": 5}),
            "edited",
            "has a seal.json that was",
        ),
        (lambda folder: edit_seal(folder, of=None), "edited", "lacks its owner in seal.json"),
        (lambda folder: edit_seal(folder, of=None, seal=None), "edited", "lacks its owner in"),
        (lambda folder: edit_seal(folder, seal=None), "unsealed", "has a seal.json without a seal"),
        (
            lambda folder: edit_seal(folder, of=None, seal=None, name=None),
            "unsealed",
            "does not say",
        ),
        (lambda folder: (folder / "seal.json").unlink(), "missing", "has no seal.json"),
        (lambda folder: seal(folder, THEIRS, "checkpoint-4", {}), "foreign", "is of another run"),
        (lambda folder: seal(folder, OURS, "checkpoint-2", {}), "foreign", "was checkpoint-2 when"),
    ],
)
def test_a_sealed_folder_that_is_not_what_was_written(
    folder: Path, spoil: object, state: str, words: str
) -> None:
    spoil(folder)  # type: ignore[operator]
    fault = sealed_folder(folder, OURS, "checkpoint-4")
    assert (fault.state, fault.words[: len(words)]) == (state, words)


def test_nothing_that_is_set_aside_is_overwritten(tmp_path: Path) -> None:
    for text in ("a", "b", "c"):
        (tmp_path / "results.csv").write_text(text)
        set_aside(tmp_path / "results.csv", tmp_path)
    names = sorted(path.name for path in (tmp_path / "aside").iterdir())
    assert names == ["results.csv", "results.csv-2", "results.csv-3"]
    assert not (tmp_path / "results.csv").exists()


def test_partial_figures_and_groups_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    for name in ("figures", "groups", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".loss.partial-12345678.png").touch()
        (tmp_path / name / "loss.png").touch()
    remove_partials(tmp_path, "loss")
    assert len(list(tmp_path.rglob(".*partial*"))) == 3
    with held(tmp_path):
        pass
    assert [p.parent.name for p in tmp_path.rglob(".*partial*")] == ["mine"]
    assert len(list(tmp_path.rglob("loss.png"))) == 3
