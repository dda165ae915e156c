from pathlib import Path

import pytest

from hessblocks.data.corpus import Corpus
from hessblocks.data.python_code import load_corpus
from tests.data.helpers import write_code
from tests.training.helpers import complete


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A few thousand tokens of code, vocabulary 260."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HESSBLOCKS_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_corpus(write_code(tmp_path_factory.mktemp("code")), 260)


@pytest.fixture(scope="session")
def undisturbed(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny comparison that nobody killed."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    complete(corpus, out)
    return out
