"""Text and GLUE by datasets, on small local files in the hub's layout."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hessblocks.errors import ArgumentError, RunError
from hessblocks_studies.data import hub
from hessblocks_studies.data.hub import GLUE, HELD_OUT, load_glue, load_hub_corpus


def write_lines(path: Path, rows: Sequence[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rows = [{"text": f"The river number {i} flows to the sea of words."} for i in range(450)]
    write_lines(tmp_path / "rivers" / "train.jsonl", [*rows, {"text": ""}, {"text": None}])
    return tmp_path / "rivers"


def test_a_folder_of_text_is_a_corpus(text: Path) -> None:
    corpus = load_hub_corpus(str(text), 300)
    assert set(corpus.splits) == {"train", "validation"}
    documents = {split: each["documents"] for split, each in corpus.description["splits"].items()}
    assert documents == {"train": 450 - 450 // HELD_OUT, "validation": 450 // HELD_OUT}
    held_out = corpus.tokenizer.decode(corpus.splits["validation"].tolist())
    train = corpus.tokenizer.decode(corpus.splits["train"].tolist())
    assert "number 199 " in held_out
    assert "number 199 " not in train
    assert load_hub_corpus(str(text), 300).fingerprint == corpus.fingerprint


def test_a_short_name_knows_its_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": "no", "content": f"def f{i}(): return {i}"} for i in range(450)]
    write_lines(tmp_path / "code" / "train.jsonl", rows)
    monkeypatch.setattr(hub, "TEXTS", {"short": (str(tmp_path / "code"), None, "content")})
    corpus = load_hub_corpus("short", 300)
    assert "def f" in corpus.tokenizer.decode(corpus.splits["validation"].tolist())


def test_so_many_characters_are_taken_and_no_more(text: Path) -> None:
    corpus = load_hub_corpus(str(text), 300, characters=1000)
    taken = sum(each["characters"] for each in corpus.description["splits"].values())
    assert 1000 <= taken < 1100


def test_a_file_that_changes_is_read_again(text: Path) -> None:
    before = load_hub_corpus(str(text), 300)
    write_lines(text / "train.jsonl", [{"text": f"Other words {i}."} for i in range(30)])
    assert load_hub_corpus(str(text), 300).fingerprint != before.fingerprint


@pytest.mark.parametrize("name", GLUE)
def test_a_glue_task_is_texts_and_labels(tmp_path: Path, name: str) -> None:
    columns, classes = GLUE[name]
    rows = [
        {**{column: f"{column} {i}" for column in columns}, "label": i % len(classes), "idx": i}
        for i in range(30)
    ]
    write_lines(tmp_path / name / "train.jsonl", rows[:20])
    write_lines(tmp_path / name / "validation.jsonl", rows[20:])
    task = load_glue(name, str(tmp_path))
    assert task.classes == classes
    assert {split: len(each) for split, each in task.splits.items()} == {
        "train": 18, "validation": 2, "test": 10,
    }  # fmt: skip
    first = task.splits["test"][0]
    assert first.text == "\n".join(f"{column} 20" for column in columns)
    assert first.label == 20 % len(classes)


def test_bad_input_is_one_sentence(text: Path) -> None:
    with pytest.raises(ArgumentError, match="--vocab-size: expected at least 257"):
        load_hub_corpus(str(text), 10)
    with pytest.raises(ArgumentError, match="task: 'rtee' is unknown; did you mean 'rte'"):
        load_glue("rtee")


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_outside_the_classes_are_refused(tmp_path: Path, label: int) -> None:
    """GLUE's own test splits have -1 everywhere."""
    row = {"sentence": "x", "label": label}
    write_lines(tmp_path / "cola" / "train.jsonl", [row] * 3)
    write_lines(tmp_path / "cola" / "validation.jsonl", [row])
    with pytest.raises(RunError, match=f"has the label {label}; expected 0 to 1"):
        load_glue("cola", str(tmp_path))


def test_without_datasets_the_way_out_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ArgumentError, match=r"import of datasets halted.*run pip install 'hessblocks"
    ):
        hub.load_glue("cola")


def test_a_datasets_that_cannot_be_imported_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    (tmp_path / "datasets.py").write_text("import a_binary_that_is_gone")
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ArgumentError,
        match=r"hub: No module named 'a_binary_that_is_gone'; run pip",
    ):
        hub.load_glue("cola")
