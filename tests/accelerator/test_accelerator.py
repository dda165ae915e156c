"""Everything on a device that is not the CPU, in a process of its own (see `device.py`); on CUDA
where it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FILES = sorted(path.name for path in Path(__file__).parent.glob("on_*.py"))


DEVICES = ["slab"] + ["cuda"] * torch.cuda.is_available()


def run(marks: str, device: str) -> subprocess.CompletedProcess[str]:
    """All files in one process, which names the tests that passed and those that did not."""
    here = Path(__file__).parent
    options = ("-q", "-p", "no:cacheprovider", "--tb=short", "-rpfE", "-m", marks)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(here / name) for name in FILES)],
        cwd=here.parents[1],
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        | {"ACCELERATOR": device},
        capture_output=True,
        text=True,
        check=False,
    )


def check(done: subprocess.CompletedProcess[str], name: str) -> None:
    """Tests of the file have passed, and none has failed."""
    said = done.stdout[-6000:] + done.stderr[-2000:]
    ends = [line.split()[0] for line in done.stdout.splitlines() if f"/{name}" in line[:200]]
    assert done.returncode in (0, 1), said
    assert ends.count("PASSED") > 3, said
    assert not {"FAILED", "ERROR"} & set(ends), said


@pytest.fixture(scope="module", params=DEVICES)
def done(request: pytest.FixtureRequest) -> subprocess.CompletedProcess[str]:
    return run("not slow", request.param)


@pytest.mark.parametrize("name", FILES)
def test_the_numbers_are_those_of_the_cpu(
    done: subprocess.CompletedProcess[str], name: str
) -> None:
    check(done, name)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_so_are_those_that_take_long(device: str) -> None:
    done = run("slow", device)
    for name in FILES:
        check(done, name)
    assert done.returncode == 0
