"""Docstrings: found by ast, split by file within packages, cached, encoded."""

import re
from collections import Counter
from pathlib import Path

import pytest

from experiments.tests.data.library import write_library
from hessblocks.data.corpus import MASK, PADDING, CacheWarning
from hessblocks.errors import ArgumentError
from hessblocks_studies.data import docstrings
from hessblocks_studies.data.docstrings import (
    SHARES,
    SPLITS,
    assigned,
    docstrings_of,
    load_docstring_corpus,
    load_docstrings,
)

TEXT = '''"""A module."""
class A:
    """A class."""
    async def f(self, x, /, y, *, z=1):
        """
        A method,

            indented.
        """
    def g(self):
        return "no docstring"
    def h(self):
        "   "
'''


def test_docstrings_are_those_of_modules_classes_and_functions() -> None:
    assert list(docstrings_of(TEXT)) == [
        ("module", "", "A module."),
        ("class", "A", "A class."),
        ("function", "f(x, y, z)", "A method,\n\n    indented."),
    ]


@pytest.mark.parametrize("text", ["def (:", "\0", "print 'two'", '"\\d"\nx = "\\w"'])
def test_what_is_not_python_of_this_version_has_none_and_says_nothing(
    text: str, recwarn: pytest.WarningsRecorder
) -> None:
    assert [kind for kind, _, _ in docstrings_of(text)] in ([], ["module"])
    assert not recwarn.list


COUNTS = {f"p/{i}.py": 10 for i in range(20)} | {"q/huge.py": 900, "q/a.py": 30, "q/b.py": 30}
COUNTS |= {"lonely/a.py": 7, "single.py": 3}


def test_every_package_gives_each_split_its_share_and_large_files_are_training_text() -> None:
    found = assigned(COUNTS)
    assert set(found) == set(COUNTS)
    assert found["q/huge.py"] == found["lonely/a.py"] == found["single.py"] == "train"
    taken = Counter(split for path, split in found.items() if path.startswith("p/"))
    assert taken == {"test": 3, "validation": 2, "train": 15}
    assert {found["q/a.py"], found["q/b.py"]} <= {"test", "validation"}
    assert sum(SHARES.values()) < 0.5


def test_the_split_of_a_package_does_not_hang_on_other_packages_or_on_order() -> None:
    found = assigned(COUNTS)
    backwards = assigned(dict(reversed(COUNTS.items())))
    alone = assigned({path: count for path, count in COUNTS.items() if path.startswith("p/")})
    assert backwards == found
    assert alone.items() <= found.items()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = write_library(tmp_path / "library")
    monkeypatch.setattr(docstrings.data, "standard_library", lambda: source)
    return tmp_path / "library"


def test_records_and_tokens_are_the_same_every_time(library: Path, cache: Path) -> None:
    records = load_docstrings()
    functions = [record for record in records if record.kind == "function"]
    assert len(functions) == 3 * 10 * 14
    assert all(record.text.endswith("More.") for record in functions)
    assert not any("self" in record.signature for record in functions)
    assert load_docstrings() == records
    assert {r.package for r in records if r.kind != "prose"} == {"net", "text", "math", ""}
    corpus = load_docstring_corpus(400)
    assert list(corpus.splits)
    assert set(corpus.splits) == set(SPLITS)
    assert corpus.tokenizer.token_to_id(MASK) not in set(corpus.splits["train"].tolist())
    assert corpus.tokenizer.token_to_id(PADDING) is not None
    fingerprint = corpus.fingerprint
    for entry in cache.iterdir():
        if entry.is_dir():
            (entry / "seal.json").unlink()
    with pytest.warns(CacheWarning, match="has no seal.json; building it again"):
        assert load_docstring_corpus(400).fingerprint == fingerprint


def test_every_document_of_a_split_is_in_its_tokens_and_in_no_other(library: Path) -> None:
    corpus = load_docstring_corpus(400)
    for split in SPLITS:
        text = corpus.tokenizer.decode(corpus.splits[split].tolist(), skip_special_tokens=True)
        for record in load_docstrings():
            assert (record.text in text) == (record.split == split), record


def test_a_docstring_that_a_held_out_file_has_too_is_not_trained_on(library: Path) -> None:
    shared = "Pause the stream, as every subclass of it does."
    for package in ("net", "text", "math"):
        for path in (library / package).iterdir():
            path.write_text(path.read_text() + f'def pause():\n    """{shared}"""\n')
    assert {record.split for record in load_docstrings() if record.text == shared} == set(SPLITS)
    corpus = load_docstring_corpus(400)
    found = {
        split: shared in corpus.tokenizer.decode(corpus.splits[split].tolist()) for split in SPLITS
    }
    assert found == {"train": False, "validation": True, "test": True}


def test_prose_is_training_text(library: Path) -> None:
    assert {record.split for record in load_docstrings() if record.kind == "prose"} <= {"train"}


def test_a_vocabulary_that_cannot_hold_every_byte_is_refused(library: Path) -> None:
    with pytest.raises(ArgumentError, match="--vocab-size: expected at least 257"):
        load_docstring_corpus(100)


@pytest.mark.slow
def test_the_standard_library_of_this_interpreter() -> None:
    records = [record for record in load_docstrings() if record.kind != "prose"]
    count = Counter(record.split for record in records)
    assert sum(count.values()) > 5000
    assert 0.05 < count["validation"] / len(records) < 0.25
    assert 0.1 < count["test"] / len(records) < 0.3


@pytest.mark.slow
def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[3] / "docs" / "downstream.md"
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(code, str(page), "exec"), {})
    assert "as written |" in capsys.readouterr().out
