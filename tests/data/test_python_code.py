"""The default corpus: this interpreter's standard library."""

from dataclasses import replace
from pathlib import Path

import pytest

from hessblocks.data.corpus import Corpus
from hessblocks.data.python_code import TEST_FOLDERS, load_corpus, standard_library

EACH = 20
"""Of so many files one is in the sample, which takes seconds less than the whole library."""


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The corpus of some files of the library."""
    whole = standard_library()
    part = replace(whole, splits={name: paths[::EACH] for name, paths in whole.splits.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HESSBLOCKS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("hessblocks.data.python_code.standard_library", lambda: part)
        return load_corpus()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HESSBLOCKS_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_corpus()


@pytest.mark.slow
def test_python_code_is_built_with_the_whole_vocabulary(corpus: Corpus) -> None:
    assert corpus.vocab_size == 4096
    assert corpus.splits["train"].dtype.itemsize == 2
    assert {name: len(tokens) > 100_000 for name, tokens in corpus.splits.items()} == {
        "train": True,
        "validation": True,
        "test-domain": True,
    }


def test_tests_are_a_domain_of_their_own_and_packages_are_left_out() -> None:
    source = standard_library()
    library = source.splits["train"] + source.splits["validation"]
    assert "ast.py" in library
    assert not any(TEST_FOLDERS & set(path.split("/")) for path in library)
    assert not any("site-packages" in path or "_sysconfigdata" in path for path in library)
    assert all(TEST_FOLDERS & set(path.split("/")) for path in source.splits["test-domain"])
    assert not set(source.splits["train"]) & set(source.splits["validation"])


@pytest.mark.slow
def test_the_corpus_is_code(sample: Corpus) -> None:
    text = sample.tokenizer.decode(sample.splits["train"][:200_000].tolist())
    assert "\ndef " in text
    assert "import " in text


def test_nothing_of_this_machine_is_in_the_manifest(sample: Corpus) -> None:
    assert str(Path.home()) not in str(sample.description)
