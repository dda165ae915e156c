from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.tests.data.library import write_library
from hessblocks.data.corpus import Corpus
from hessblocks_studies.data import docstrings
from hessblocks_studies.data.docstrings import load_docstring_corpus, load_docstrings
from hessblocks_studies.data.tasks import Task, make_task


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[None]:
    """A little library and a cache of their own, for as long as a module runs."""
    with pytest.MonkeyPatch.context() as patch:
        source = write_library(tmp_path_factory.mktemp("library"))
        patch.setenv("HESSBLOCKS_CACHE", str(cache))
        patch.setattr(docstrings.data, "standard_library", lambda: source)
        yield


@pytest.fixture
def corpus(session: None) -> Corpus:
    return load_docstring_corpus(400)


@pytest.fixture
def topic(session: None) -> Task:
    return make_task("topic", load_docstrings())


@pytest.fixture
def own_cache(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of this test alone; the corpus is open already."""
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
