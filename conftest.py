"""Every test runs on one thread, offline, with annotated shapes checked."""

import functools
import gc
import importlib
import os
import re
from collections import Counter
from collections.abc import Generator, Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping
import pytest
import torch

from tests import shape_checks
from tests.pictures import empty_pictures

shape_checks.install()
torch.set_num_threads(1)
torch.set_warn_always(
    True
)  # or only the first test that meets one of torch's warnings would see it


def pytest_collection_finish() -> None:
    """Freeze what is imported: each run of the Trainer collects garbage, and would search it."""
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Say last how many tests each missing package skipped."""
    yield
    skipped = Counter[str]()
    for report in terminalreporter.getreports("skipped"):
        reason = str(report.longrepr[2])
        if lacking := re.search(r"could not import '([\w.]+)'|not installed: ([\w, -]+)", reason):
            skipped.update((lacking[1] or lacking[2]).split(", "))
    for name, count in skipped.most_common():
        terminalreporter.write_line(f"not installed: {name}; tests or files skipped: {count}")


@pytest.fixture(autouse=True, scope="session")
def _one_commit() -> Iterator[None]:
    """A file that is edited while the tests run makes no other environment."""
    module = importlib.import_module("hessblocks.storage.config")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_commit", functools.cache(module._commit))
        yield


@pytest.fixture
def blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are written without content."""
    empty_pictures(monkeypatch)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test starts from the same random state."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _shapes(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of bad input meets the errors of the package itself, not those of the checker."""
    exempt = request.node.get_closest_marker("bad_input") is not None
    jaxtyping.config.update("jaxtyping_disable", exempt)
    shape_checks.CALLS.clear()
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
