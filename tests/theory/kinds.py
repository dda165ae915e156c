"""The cases that run every day: the cheapest of each kind of layer."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.theory.cases import Case

DAILY = (
    "plain",
    "random mask",
    "low-rank curvature",
    "projection",
    "three heads side by side",
    "shared key-value heads",
    "linear scores",
    "one matrix, heads",
    "shaped",
    "simplified block",
    "rotary",
    "normed queries",
    "fixed norms, shaped",
    "temperature, one matrix",
    "few tokens, wide heads",
    "one token",
    "zero query weights",
    "no loss on some tokens",
)


def daily(cases: Sequence[Case], names: Sequence[str] = DAILY) -> list[Any]:
    """Cases as parameters of a test; those that are not named are slow."""
    return [
        pytest.param(case, marks=[] if case.name in names else [pytest.mark.slow]) for case in cases
    ]
