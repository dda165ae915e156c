"""Commands and workers keep the memory that each step frees and asks for again."""

import ctypes
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hessblocks.cli import main
from hessblocks.storage.tables import Row
from hessblocks.studies.engine.workers import LocalProcesses
from tests.studies import toy

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
PAGES = 20 * 4 * 2048
"""Of all steps together."""


def faults() -> int:
    """Pages that the kernel gives to twenty steps of four arrays of 8 MiB, each freed after its step."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(2**20) for _ in range(4)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def measure(settings: toy.ToySettings) -> list[Row]:
    """A point of a study."""
    first = faults()
    return [{"first": first, "then": faults()}]


def test_a_command_keeps_them() -> None:
    """In a process of its own, which has not been set before."""
    root = Path(__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.test_heap"], cwd=root, capture_output=True, text=True
    )
    before, after = map(int, ran.stdout.splitlines()[-1].split())
    assert before > PAGES / 10
    assert after < PAGES / 100


def test_a_worker_keeps_them() -> None:
    crew = LocalProcesses(1)
    (outcome,) = crew.outcomes(measure, [toy.point(toy.ToySettings(number=0))])
    crew.close()
    assert outcome.rows[0]["then"] < PAGES / 100


if __name__ == "__main__":
    unset = faults()
    main(["--version"])
    faults()
    print(unset, faults())
