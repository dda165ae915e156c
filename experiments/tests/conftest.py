"""Fixtures of the studies: the command line as the library's tests have it, and a small text."""

from collections.abc import Iterator

import pytest

from hessblocks.data.corpus import Corpus
from hessblocks.data.python_code import load_corpus
from hessblocks_studies.data import texts
from tests.cli.conftest import code, shared_cache, shell  # noqa: F401
from tests.data.helpers import write_code


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HESSBLOCKS_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = load_corpus(write_code(tmp_path_factory.mktemp("code")), 260)
        patch.setattr(texts, "_text", lambda data, vocabulary: found)
        yield found
