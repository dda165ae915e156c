"""The Makefile makes its own environment, and leaves one that it did not make as it is."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = (
    "Makefile",
    "pyproject.toml",
    "experiments/pyproject.toml",
    "constraints.txt",
    "oracles.txt",
)
"""What an environment is made from."""
PYTHON = """#!/bin/sh
[ "$1" = -c ] && exit 0
[ -e no-ensurepip ] && mkdir -p .venv/bin && exit 1
rm -rf .venv && mkdir -p .venv/bin
printf '#!/bin/sh\\n[ ! -e broken ]\\n' > .venv/bin/python
printf '#!/bin/sh\\necho trained\\n' > .venv/bin/hessblocks
chmod +x .venv/bin/*
"""
"""In the place of Python: an environment whose pip fails where a file `broken` lies; none where
`no-ensurepip` does."""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "experiments").mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make(checkout: Path, target: str) -> subprocess.CompletedProcess[str]:
    command = ["make", target, "PYTHON=./python"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        command, cwd=checkout, env=plain, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("target", ["demo", "lint"])
def test_an_environment_made_by_hand_is_left_as_it_is(checkout: Path, target: str) -> None:
    mine = checkout / ".venv" / "mine"
    mine.parent.mkdir()
    mine.touch()
    made = make(checkout, target)
    assert made.returncode != 0
    assert made.stderr.startswith("make: .venv was made by hand and is left as it is; move it away")
    assert [path.name for path in mine.parent.iterdir()] == ["mine"]
    assert make(checkout, "clean").returncode == 0
    assert mine.exists()


def test_an_environment_of_ours_is_made_again_when_it_is_out_of_date(checkout: Path) -> None:
    assert "trained" in make(checkout, "demo").stdout
    old = checkout / ".venv" / "old"
    old.touch()
    assert "trained" in make(checkout, "demo").stdout
    assert old.exists()
    later = (checkout / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(checkout / "constraints.txt", (later, later))
    assert "trained" in make(checkout, "demo").stdout
    assert not old.exists()
    assert make(checkout, "clean").returncode == 0
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("fault", ["broken", "no-ensurepip"])
def test_an_installation_that_broke_off_is_ours_too_and_begins_again(
    checkout: Path, fault: str
) -> None:
    (checkout / fault).touch()
    assert make(checkout, "demo").returncode != 0
    (checkout / fault).unlink()
    assert "trained" in make(checkout, "demo").stdout
