"""Commands keep the memory that each step frees and asks for again."""

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hessblocks.cli import main

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
PAGES = 20 * 10240
"""Of all steps together."""


def faults() -> int:
    """Pages that the kernel gives to twenty steps of an array of 40 MiB, which is freed after each.

    Above 32 MiB no threshold of glibc's keeps a block.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        array = np.ones(5 * 2**20)
        del array
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def command(**variables: str) -> list[int]:
    """Pages before a command and after it, in a process of its own, which has not been set
    before."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.test_malloc"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(count) for count in ran.stdout.splitlines()[-1].split()]


def test_a_command_keeps_them() -> None:
    before, after = command()
    assert before > PAGES / 10
    assert after < PAGES / 100


def test_what_the_user_has_set_stays() -> None:
    """Here that every block is mapped by itself, and so asks for all of its pages each time."""
    before, after = command(MALLOC_MMAP_THRESHOLD_="65536")
    assert min(before, after) > PAGES / 2


if __name__ == "__main__":
    unset = faults()
    main(["--version"])
    faults()
    print(unset, faults())
