from pathlib import Path

import pytest

from tests.data.helpers import write_code


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    root = tmp_path / "cache"
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(root))
    return root


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder of thirty little Python files."""
    return write_code(tmp_path / "code")
