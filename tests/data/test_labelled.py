"""Rows of a user's own file: read from each format alike, split without a leak, refused in a sentence."""

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from hessblocks.data.labelled import LabelledFile, load_labelled
from hessblocks.errors import ArgumentError

ROWS = [(f"text {n}, with a comma and “quotes”", ("no", "yes", "yes")[n % 3]) for n in range(60)]


def table(path: Path, rows: list[tuple[str, str]], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([("text", "label"), *rows])
    return path


def load(path: Path, *, share: float = 0.2, seed: int = 0) -> LabelledFile:
    return load_labelled(path, ["text"], "label", share, seed)


def texts(rows: object) -> list[str]:
    return [row.texts[0] for row in rows]  # type: ignore[attr-defined]


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    found = load(table(tmp_path / "a.csv", ROWS))
    lines = [json.dumps({"label": label, "text": text, "more": 1}) for text, label in ROWS]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "a.csv").read_bytes())
    for other in ("a.jsonl", "b.csv"):
        assert load(tmp_path / other).train == found.train
        assert load(tmp_path / other).held_out == found.held_out
    assert load(table(tmp_path / "a.tsv", ROWS, "\t")).train == found.train
    assert sorted(texts(found.train) + texts(found.held_out)) == sorted(text for text, _ in ROWS)
    assert [(r.texts[0], r.label) for r in found.train] == [
        r for r in ROWS if r[0] in texts(found.train)
    ]


def test_quotes_of_a_tsv_are_text(tmp_path: Path) -> None:
    """An open quote would join the rows up to the next one, without a word."""
    rows = [('"Great film', "pos"), ("a bore", "neg"), ('"', "pos"), ('it is ""it""', "neg")]
    lines = ["text\tlabel", *("\t".join(row) for row in rows), ""]
    (tmp_path / "a.tsv").write_text("\n".join(lines), encoding="utf-8")
    found = load(tmp_path / "a.tsv")
    assert sorted((r.texts[0], r.label) for r in (*found.train, *found.held_out)) == sorted(rows)


def test_a_long_text_is_not_damaged(tmp_path: Path) -> None:
    """csv's own bound is 131,072 characters, and is that of the whole process."""
    before = csv.field_size_limit()
    found = load(table(tmp_path / "a.csv", [*ROWS, ("long " * 40_000, "yes")]))
    assert max(map(len, texts(found.train) + texts(found.held_out))) == 200_000
    assert csv.field_size_limit() == before


def test_each_label_gives_its_share_and_the_seed_says_which(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ROWS)
    found = load(path)
    assert Counter(row.label for row in found.held_out) == {"no": 4, "yes": 8}
    assert load(path).held_out == found.held_out
    assert load(path, seed=1).held_out != found.held_out
    assert Counter(row.label for row in load(path, share=0.001).held_out) == {"no": 1, "yes": 1}
    assert Counter(row.label for row in load(path, share=0.999).train) == {"no": 1, "yes": 1}


@pytest.mark.parametrize("seed", range(5))
def test_equal_texts_stay_on_one_side(tmp_path: Path, seed: int) -> None:
    """The planted leak: rows drawn one by one put copies of a text on both sides."""
    found = load(table(tmp_path / "a.csv", ROWS * 3), seed=seed)
    assert len(found.train) + len(found.held_out) == 180
    assert not set(texts(found.train)) & set(texts(found.held_out))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["b", "10", "a"], ("10", "a", "b")),
        (["01", "1", "2"], ("01", "1", "2")),
    ],
)
def test_numbers_are_ordered_as_numbers(
    tmp_path: Path, labels: list[str], classes: tuple[str, ...]
) -> None:
    rows = [(f"{label} {n}", label) for label in labels for n in range(2)]
    assert load(table(tmp_path / "a.csv", rows)).classes == classes


def test_pairs_and_whole_numbers_of_json(tmp_path: Path) -> None:
    lines = [json.dumps({"a": f"a{n}", "b": f"b{n}", "label": n % 2}) for n in range(6)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = load_labelled(tmp_path / "a.jsonl", ["b", "a"], "label", 0.3, 0)
    assert found.classes == ("0", "1")
    assert {row.texts for row in found.train} < {(f"b{n}", f"a{n}") for n in range(6)}


BAD = {
    "no file": ("a.csv", None, "a.csv cannot be read"),
    "a name without an end": ("a", "text,label", r"ends in \.csv, \.tsv or \.jsonl"),
    "no rows": ("a.csv", "text,label\n", "has no rows; expected rows of two labels"),
    "nothing": ("a.csv", "", "has no rows"),
    "one label": ("a.csv", "text,label\na,x\nb,x\n", "has one label, 'x'; expected"),
    "no text column": ("a.csv", "words,label\na,x\n", "--text: .* row 1 has no column 'text'; it has words, label"),
    "no label column": ("a.csv", "text,class\na,x\n", "--label: .* row 1 has no column 'label'"),
    "an empty text": ("a.csv", "text,label\na,x\n  ,y\n", "row 2 has nothing under 'text'"),
    "an empty label": ("a.csv", "text,label\na,\n", "row 1 has nothing under 'label'"),
    "a short row": ("a.csv", "text,label\na\n", "row 1 has nothing under 'label'"),
    "a long row": ("a.csv", "text,label\na,x,z\n", "row 1: expected one entry for each column"),
    "an open quote": ("a.csv", 'text,label\n"a,x\n', "is damaged"),
    "two columns of a name": ("a.csv", "text,label,text\na,x,b\n", "has two columns 'text'"),
    "no JSON": ("a.jsonl", "{\n", "is damaged"),
    "JSON too deep": ("a.jsonl", "[" * 200_000, "is damaged"),
    "no object": ("a.jsonl", "[1]\n", "row 1: expected one entry for each column"),
    "a number for a text": ("a.jsonl", '{"text": 1, "label": 1}\n', "row 1: expected texts"),
    "half a label": ("a.jsonl", '{"text": "a", "label": 0.5}\n', "row 1: expected texts"),
    "null": ("a.jsonl", '{"text": null, "label": 1}\n', "row 1 has nothing under 'text'"),
    "a rare label": ("a.csv", "text,label\na,x\nb,x\nc,y\nc,y\n", "the label 'y' on one text alone"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_learnt_from_is_refused(tmp_path: Path, case: str) -> None:
    name, text, answer = BAD[case]
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError, match=answer):
        load(tmp_path / name)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,label\n\xff,x\n")
    with pytest.raises(ArgumentError, match="is no UTF-8 text"):
        load(tmp_path / "a.csv")


def test_a_label_that_is_held_out_alone_is_refused(tmp_path: Path) -> None:
    rows = [("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("a", "z"), ("b", "z")]
    path = table(tmp_path / "a.csv", rows)
    assert all("z" in {row.label for row in load(path, seed=s).train} for s in range(5))
    path = table(tmp_path / "b.csv", rows[:5])
    said = set()
    for seed in range(8):
        try:
            load(path, seed=seed)
        except ArgumentError as error:
            said.add(str(error).partition(" has ")[2])
    assert said == {
        "the label 'z' in held-out rows alone, on texts that stand there with other labels too; remove those rows, or "
        "take another --seed."
    }
