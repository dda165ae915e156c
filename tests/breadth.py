"""Of the many cases of one law, those of every day."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def everyday(names: Iterable[Any], *chosen: Any) -> list[ParameterSet]:
    """All names as parameters; those that are not chosen are slow."""
    names = list(names)
    assert set(chosen) <= set(names)
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in chosen)) for name in names]
