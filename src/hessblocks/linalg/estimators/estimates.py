"""Results that carry their uncertainty and say how they were obtained and how they ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

Method = Literal["exact", "estimate", "sampled"]
Stop = Literal["count", "tolerance", "limit"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number, how far it may be off, and what was spent on it.

    >>> print(Estimate(value=1.234, standard_error=0.05, probes=16))
    1.23 ± 0.05 (16 probes)
    """

    value: float
    """The value itself, in the unit of what was asked for."""
    standard_error: float = 0.0
    """Standard error of `value` over probes; 0 for exact results."""
    probes: int = 0
    """Products spent: random probes and the bases made of them, or samples; 0 for exact results."""
    method: Method = "estimate"
    """`exact` (closed form or assembled matrix), `estimate` (random probes) or `sampled` (inner products of
    samples: a norm below zero is not told from zero)."""
    stopped_by: Stop = "count"
    """`count` (the probes asked for), `tolerance` (met) or `limit` (tolerance not met)."""

    @property
    def relative_error(self) -> float:
        """Standard error over the absolute value; 0 where both are 0."""
        if self.standard_error == 0.0:
            return 0.0
        return self.standard_error / abs(self.value) if self.value else float("inf")

    def to_row(self) -> dict[str, Any]:
        """Value, standard error and method, as columns of a table."""
        return {
            "value": self.value,
            "standard_error": self.standard_error,
            "method": self.method,
        }

    def __str__(self) -> str:
        """Value and standard error in three significant digits."""
        if self.method == "exact":
            return f"{self.value:.4g} (exact)"
        spent = f"{self.probes} {'samples' if self.method == 'sampled' else 'probes'}"
        told = "" if self.value >= 0 or self.method != "sampled" else ", not told from zero"
        return f"{self.value:.3g} ± {self.standard_error:.1g} ({spent}{told})"


@dataclass(frozen=True, kw_only=True, eq=False)
class DiagonalEstimate:
    """The diagonal of an operator, entry by entry with its uncertainty."""

    values: Float[Tensor, " size"]
    """Diagonal entries, on the operator's device."""
    standard_errors: Float[Tensor, " size"]
    """Standard error of each entry; 0 for exact results."""
    probes: int = 0
    """Random probe vectors used; 0 for exact results."""
    method: Method = "estimate"
    """`exact` (closed form or assembled matrix) or `estimate` (random probes)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Eigenvalues:
    """Eigenvalues at the ends of a spectrum, with measured residuals."""

    values: Float[Tensor, " count"]
    """Eigenvalues in falling order, float64 on the CPU."""
    residuals: Float[Tensor, " count"]
    """‖A v − λ v‖ of each unit vector, from the products made; an eigenvalue of A lies within it."""
    vectors: Float[Tensor, "size count"]
    """Unit eigenvectors as columns, in the operator's dtype and on its device."""
    converged: bool
    """Whether every residual is at most the tolerance times the largest |eigenvalue| seen."""
    products: int
    """Products with single vectors spent."""


@dataclass(frozen=True, kw_only=True)
class ConditionNumber:
    """Largest over smallest singular value, and the interval that the residuals allow."""

    value: float
    """The ratio; infinite where the smallest singular value is 0 to rounding."""
    lower: float
    """Smallest ratio that the residuals of both ends allow."""
    upper: float
    """Largest ratio that the residuals allow; infinite where 0 is among them."""
    largest: float
    """Largest singular value."""
    smallest: float
    """Smallest singular value."""
    converged: bool
    """Whether both ends converged; if not, `value` tends to be too small."""
    products: int
    """Products with single vectors spent, those with the adjoint included."""
