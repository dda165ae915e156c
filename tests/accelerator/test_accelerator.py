"""Everything on a device that is not the CPU, in processes of their own (see `device.py`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(path.name for path in Path(__file__).parent.glob("on_*.py"))


def run(name: str, marks: str) -> None:
    here = Path(__file__).parent
    options = ("-q", "-x", "-p", "no:cacheprovider", "--tb=short", "-m", marks)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(here / name)],
        cwd=here.parents[1],
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", FILES)
def test_the_numbers_are_those_of_the_cpu(name: str) -> None:
    run(name, "not slow")


@pytest.mark.slow
def test_so_are_those_that_take_long() -> None:
    run("on_curvature.py", "slow")
