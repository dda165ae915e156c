"""Logarithmic axis that has a place for zero."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LogScale:
    """Logarithmic scale: whole decades, and below them, where it is needed, a line for zero."""

    lowest: int
    """Exponent of the lowest decade."""
    highest: int
    """Exponent of the highest decade."""
    has_zero: bool
    """Whether a value is zero, and the axis goes one decade further down for it."""

    @property
    def zero(self) -> float:
        """Place of zero: one decade below the lowest."""
        return 10.0 ** (self.lowest - 1)

    @property
    def limits(self) -> tuple[float, float]:
        """Limits of the axis, low and high."""
        # 0.3 decades of room below the line of zero
        low = self.lowest - (1.3 if self.has_zero else 0.0)
        return 10.0**low, 10.0 ** (self.highest + 0.05)

    @property
    def ticks(self) -> tuple[int, ...]:
        """Exponents with a label, at most seven or so."""
        step = math.ceil((self.highest - self.lowest) / 7) or 1
        return tuple(range(self.highest, self.lowest - 1, -step))[::-1]

    def labelled(self, power: str) -> tuple[list[float], list[str]]:
        """Place the labels, that of zero among them, and write their texts.

        Args:
            power: text of a power of ten, `{}` where its exponent stands.

        Returns:
            Places and texts, from the lowest to the highest.
        """
        places = [10.0**exponent for exponent in self.ticks]
        texts = [power.format(exponent) for exponent in self.ticks]
        return ([self.zero, *places], ["0", *texts]) if self.has_zero else (places, texts)

    def place(self, value: float) -> float:
        """Return where a value is drawn."""
        return value if value > 0 else self.zero

    def reach(self, value: float, error: float) -> tuple[float, float]:
        """Measure an error bar below and above the value; it ends at the lower limit."""
        if value <= 0:
            return 0.0, 0.0
        return min(error, value - self.limits[0]), error


def log_scale(values: Iterable[float]) -> LogScale:
    """Choose the decades around finite values ≥ 0.

    Args:
        values: what the axis must show.

    Returns:
        A scale of at least one decade; from 1 to 10 where no value is positive.

    >>> scale = log_scale([0.0, 0.02, 30.0])
    >>> scale.ticks, scale.zero
    ((-2, -1, 0, 1, 2), 0.001)
    """
    shown = list(values)
    positive = [value for value in shown if value > 0]
    lowest = math.floor(math.log10(min(positive))) if positive else 0
    highest = math.ceil(math.log10(max(positive))) if positive else 1
    return LogScale(
        lowest=lowest,
        highest=max(highest, lowest + 1),
        has_zero=len(positive) < len(shown),
    )
