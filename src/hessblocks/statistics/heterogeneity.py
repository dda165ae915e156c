"""How uneven norms are: the largest over the smallest that is not zero."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Ratio = TypeVar("Ratio")


@dataclass(frozen=True, kw_only=True)
class Heterogeneity(Generic[Ratio]):
    """Largest over smallest group norm, with whatever carries the ratio's error."""

    ratio: Ratio
    """Largest over smallest norm; no unit, 1 is perfectly even, 0 where every norm is zero."""
    largest: str
    """The group with the largest norm; empty where every norm is zero."""
    smallest: str
    """The group with the smallest norm that is not zero; empty where every norm is zero."""
    zero_groups: tuple[str, ...]
    """Groups whose norm is exactly 0, left out of the ratio."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """The largest and the smallest of one set of norms."""

    largest: str
    """Name of the largest."""
    smallest: str
    """Name of the smallest that is not zero."""
    ratio: float
    """Largest over smallest; no unit."""
    standard_error: float | None
    """Of the ratio; None where one of the two norms has none."""


def ends(norms: Mapping[str, tuple[float, float | None]]) -> Ends | None:
    """The largest and the smallest positive finite norm, and their ratio.

    Formula: r = max / min, standard error r √((s_max / max)² + (s_min / min)²).

    Args:
        norms: name → norm ≥ 0 and its standard error.

    Returns:
        Both ends; None where no norm is positive and finite.
    """
    positive = {
        name: norm for name, norm in norms.items() if math.isfinite(norm[0]) and norm[0] > 0
    }
    if not positive:
        return None
    largest = max(positive, key=lambda name: positive[name][0])
    smallest = min(positive, key=lambda name: positive[name][0])
    ratio = positive[largest][0] / positive[smallest][0]
    relative = [
        error / value
        for value, error in (positive[largest], positive[smallest])
        if error is not None
    ]
    error = ratio * math.hypot(*relative) if len(relative) == 2 else None
    return Ends(largest=largest, smallest=smallest, ratio=ratio, standard_error=error)
