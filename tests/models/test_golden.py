"""A change of the code that changes a loss curve must be meant (and `golden.json` written anew)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.models.golden import FILE, KEPT, NAMES, losses

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
same_torch = pytest.mark.skipif(
    torch.__version__.split("+")[0] != GOLDEN["torch"],
    reason=f"remembered with torch {GOLDEN['torch']}",
)


named = pytest.mark.parametrize("name", NAMES)
DAILY = "sas-p"
"""Whose two hundred steps run every day; those of all others take a minute."""


def compare(name: str, steps: int) -> None:
    curve = losses(name, steps)
    kept = [step for step in KEPT if step < steps]
    assert [curve[step] for step in kept] == pytest.approx(
        GOLDEN["losses"][name][: len(kept)], rel=1e-6
    )


@same_torch
@named
def test_the_first_steps_are_as_remembered(name: str) -> None:
    compare(name, 6)


@same_torch
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == DAILY else [pytest.mark.slow]) for name in NAMES],
)
def test_two_hundred_steps_are_as_remembered(name: str) -> None:
    compare(name, 200)
    assert GOLDEN["losses"][name][-1] < 0.5 * GOLDEN["losses"][name][0]


SETS = [
    ("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"),
    ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
    ("MKL_ENABLE_INSTRUCTIONS", "AVX512"),  # where there is none, the best there is
    ("ATEN_CPU_CAPABILITY", "default"),
    ("ATEN_CPU_CAPABILITY", "avx2"),
]


@pytest.mark.slow
@same_torch
@pytest.mark.parametrize(("variable", "instructions"), SETS)
def test_older_instruction_sets_give_the_same_curves(variable: str, instructions: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.models.golden", "--print"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, variable: instructions},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    curves = json.loads(run.stdout)
    assert list(curves) == list(NAMES)
    for name, curve in curves.items():
        first, last = GOLDEN["losses"][name][:6], GOLDEN["losses"][name][6:]
        assert curve[:6] == pytest.approx(first, rel=1e-6), name
        # Adam divides gradients that are 0 but for rounding (SAS begins with queries of 0) by their
        # own size, and steps amplify that: SSE4_2 on an Intel: 8e-8, ..., 9e-7; 3e-6, 1e-4, 5e-4
        assert curve[6:] == pytest.approx(last, rel=1e-3), name
