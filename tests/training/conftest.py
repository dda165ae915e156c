from pathlib import Path

import pytest

from hessblocks.data.corpus import Corpus
from hessblocks.data.python_code import load_corpus
from hessblocks.storage.manifest import check_manifest
from hessblocks.training.comparison import compare
from tests.data.helpers import write_code
from tests.training.helpers import ALONE, complete, killed_at_step


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


@pytest.fixture(scope="session")
def alone(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the single run that nobody killed."""
    out = tmp_path_factory.mktemp("alone") / "out"
    complete(corpus, out, ALONE)
    return out


@pytest.fixture(scope="session")
def stopped(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the single run, killed when it had two whole checkpoints, at steps 4 and 8."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    killed_at_step(lambda progress: compare(ALONE, corpus, out, progress), 9)
    checkpoints = sorted((out / "runs" / "pre-ln-seed0" / "checkpoints").glob("checkpoint-*"))
    assert [one.name for one in checkpoints] == ["checkpoint-4", "checkpoint-8"]
    assert {check_manifest(one) for one in checkpoints} == {""}
    return out
