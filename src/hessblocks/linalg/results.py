"""Results that carry their uncertainty and say how they were obtained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["exact", "estimate"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number, how far it may be off, and what was spent on it."""

    value: float
    """The value itself, in the unit of what was asked for."""
    standard_error: float = 0.0
    """Standard error of `value` over probes; 0 for exact results."""
    probes: int = 0
    """Random probe vectors used; 0 for exact results."""
    method: Method = "estimate"
    """`exact` (closed form or assembled matrix) or `estimate` (random probes)."""

    def __str__(self) -> str:
        """Value and standard error in three significant digits."""
        if self.method == "exact":
            return f"{self.value:.4g} (exact)"
        return f"{self.value:.3g} ± {self.standard_error:.1g} ({self.probes} probes)"
