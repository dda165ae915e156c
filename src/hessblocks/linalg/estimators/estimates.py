"""Result classes: value, uncertainty, method and reason of the stop."""

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from hessblocks.storage import Tabular

Method = Literal["exact", "estimate", "sampled", "measured"]
SPENT = {"estimate": "probes", "sampled": "samples", "measured": "pieces of the data"}
"""Unit of the cost, by method."""
ENDS = 6
"""Number of eigenvalues that are printed."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Estimate(Tabular):
    """Estimate of a number: its value, its standard error and its cost.

    Examples:
        >>> import hessblocks as hb
        >>> print(hb.Estimate(value=1.234, standard_error=0.05, probes=16))
        1.23 ± 0.05 (16 probes)
    """

    value: float
    """The value, in the unit of the estimated number."""
    standard_error: float = 0.0
    """Standard error of `value` over probes; 0 for exact results."""
    probes: int = 0
    """Number of products (random probes and the bases made of them) or of samples; for `measured`,
    number of pieces of the data; 0 for exact results."""
    method: Method = "estimate"
    """`exact` (closed form or assembled matrix), `estimate` (random probes), `sampled` (inner
    products of samples: a negative norm means 0 within its error) or `measured` (forward passes;
    the error is over pieces of the data)."""

    @property
    def relative_error(self) -> float:
        """Standard error divided by the absolute value; 0 if both are 0."""
        if self.standard_error == 0.0:
            return 0.0
        return self.standard_error / abs(self.value) if self.value else float("inf")

    def to_row(self) -> dict[str, Any]:
        """Return value, standard error and method by name, for a table."""
        return {"value": self.value, "standard_error": self.standard_error, "method": self.method}

    def to_rows(self) -> list[dict[str, Any]]:
        """Build one row, with the cost."""
        return [{**self.to_row(), "probes": self.probes}]

    def __str__(self) -> str:
        """Print value and standard error in three significant digits."""
        if self.method == "exact":
            return f"{self.value:.4g} (exact)"
        spent = f"{self.probes} {SPENT[self.method]}"
        note = "" if self.value >= 0 or self.method != "sampled" else ", not told from zero"
        # 100, not 1e+02
        return f"{self.value:.3g} ± {float(f'{self.standard_error:.1g}'):g} ({spent}{note})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DiagonalEstimate(Tabular):
    """Diagonal of an operator, entry by entry with its uncertainty."""

    values: Float[Tensor, " size"]
    """Diagonal entries, on the operator's device."""
    standard_errors: Float[Tensor, " size"]
    """Standard error of each entry; 0 for exact results."""
    probes: int = 0
    """Random probe vectors used; 0 for exact results."""
    method: Method = "estimate"
    """`exact` (closed form or assembled matrix), `estimate` (random probes) or `sampled`."""

    def to_rows(self) -> list[dict[str, Any]]:
        """List index, value, standard_error and method of each entry."""
        return self._first(len(self.values))[0]

    def _first(self, count: int) -> tuple[list[dict[str, Any]], int]:
        columns = self.values[:count].tolist(), self.standard_errors[:count].tolist()
        pairs = zip(*columns, strict=True)
        rows = [
            {"index": index, "value": value, "standard_error": error, "method": self.method}
            for index, (value, error) in enumerate(pairs)
        ]
        return rows, len(self.values)

    def __str__(self) -> str:
        """Print the number of entries, their range and the cost."""
        exact = self.method == "exact"
        spent = "exact" if exact else f"{self.probes} {SPENT[self.method]}"
        low, high = float(self.values.min()), float(self.values.max())
        return f"{len(self.values):,} diagonal entries from {low:.3g} to {high:.3g} ({spent})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Eigenvalues(Tabular):
    """Eigenvalues at the ends of a spectrum, with measured residuals."""

    values: Float[Tensor, " count"]
    """Eigenvalues in falling order, float64 on the CPU."""
    residuals: Float[Tensor, " count"]
    """‖A v − λ v‖ of each unit vector, from the products made.

    An eigenvalue of A lies within it."""
    vectors: Float[Tensor, "size count"]
    """Unit eigenvectors as columns, in the operator's dtype and on its device."""
    converged: bool
    """Whether every residual is at most the tolerance times the largest |eigenvalue| found, and a
    check by a random vector found no missed eigenvalue."""
    products: int
    """Number of products with single vectors."""
    basis_size: int = 0
    """Largest number of basis vectors; 0 if the matrix was assembled."""
    restarts: int = 0
    """Number of restarts with a full basis."""
    method: Method = "estimate"
    """`exact` (assembled matrix) or `estimate` (Lanczos)."""

    def to_rows(self) -> list[dict[str, Any]]:
        """List eigenvalue and residual, the largest eigenvalue first."""
        pairs = zip(self.values.tolist(), self.residuals.tolist(), strict=True)
        return [{"eigenvalue": value, "residual": residual} for value, residual in pairs]

    def __str__(self) -> str:
        """Print the values, the largest residual, and the cost."""
        values = [f"{value:.4g}" for value in self.values.tolist()]
        if len(values) > ENDS:
            values = [*values[: ENDS // 2], "…", *values[-ENDS // 2 :]]
        ended = "" if self.converged else ", not converged"
        worst = float(self.residuals.max())
        spent = f"a basis of {self.basis_size}, {self.restarts} restarts"
        return (
            f"eigenvalues {', '.join(values)} (residuals up to {worst:.1g}, {self.products} "
            f"products, {'exact' if self.method == 'exact' else spent}{ended})"
        )
