from pathlib import Path

import pytest

import hessblocks.cli.commands.work  # noqa: F401  # its names are bound before a test patches hessblocks.report
from tests.cli.helpers import Shell
from tests.data.helpers import write_code


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of thirty little Python files."""
    return write_code(tmp_path_factory.mktemp("code"))


@pytest.fixture
def shell(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shared_cache: Path,
    code: Path,
) -> Shell:
    """The command line, with a cache that the tests share and without drawing figures."""
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(shared_cache))
    monkeypatch.setattr(
        "hessblocks.cli.commands.work.write_report", lambda out: out / "report.html"
    )
    return Shell(capsys, code)
