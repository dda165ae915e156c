"""The default corpus: this interpreter's standard library."""

import time
from pathlib import Path

import pytest

from hessblocks.data.corpus import Corpus
from hessblocks.data.python_code import load_corpus
from hessblocks.data.sources import TEST_FOLDERS, standard_library


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HESSBLOCKS_CACHE", str(tmp_path_factory.mktemp("cache")))
        start = time.process_time()
        return load_corpus(), time.process_time() - start


def test_it_is_built_well_under_a_minute_with_the_whole_vocabulary(
    built: tuple[Corpus, float],
) -> None:
    corpus, seconds = built
    assert seconds < 45
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


def test_the_corpus_is_code(built: tuple[Corpus, float]) -> None:
    corpus, _ = built
    text = corpus.tokenizer.decode(corpus.splits["train"][:200_000].tolist())
    assert "\ndef " in text
    assert "import " in text


def test_nothing_of_this_machine_is_in_the_manifest(built: tuple[Corpus, float]) -> None:
    corpus, _ = built
    assert str(Path.home()) not in str(corpus.description)
