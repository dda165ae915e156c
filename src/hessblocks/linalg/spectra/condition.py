"""Condition number: the ratio of the largest to the smallest singular value, by Lanczos."""

import math
import warnings
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.linalg.estimators import multiply
from hessblocks.linalg.operators import (
    LinearOperator,
    Operand,
    keeping,
    operator_of,
    unit_of,
    working_dtype,
)
from hessblocks.linalg.spectra.search import Wanted, find_extremes
from hessblocks.storage import Tabular


@dataclass(frozen=True, kw_only=True, repr=False)
class ConditionNumber(Tabular):
    """Condition number, with the interval that the residuals of both singular values allow."""

    value: float
    """The ratio; infinite if the smallest singular value is 0 up to rounding."""
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

    def to_rows(self) -> list[dict[str, Any]]:
        """Build one row: the ratio, its interval, both singular values and what was spent."""
        return [asdict(self)]

    def __str__(self) -> str:
        """Print the ratio, its interval, and what was spent."""
        ended = "" if self.converged else ", not converged"
        return (
            f"{self.value:.4g}, {self.lower:.4g} to {self.upper:.4g} by the residuals "
            f"({self.products} products{ended})"
        )


@keeping
def condition_number(
    op: LinearOperator | Operand,
    *,
    tolerance: float = 1e-3,
    max_products: int = 1000,
    basis_size: int = 64,
    memory_limit: int | None = None,
    seed: int = 0,
    probe_chunk: int | None = None,
) -> ConditionNumber:
    """Estimate the condition number σ_1 / σ_n of an operator (M, N), n = min(M, N), by Lanczos.

    Both ends are eigenvalues of A where A is declared positive semi-definite, else of AᵀA (AAᵀ for
    a wide matrix). An end below δ = 10 ε √n times the largest eigenvalue is rounding and counts as
    0, with ε that of the dtype. So condition numbers above 1/δ (A) or 1/√δ (AᵀA) read infinite. At
    n = 100 and with AᵀA, that is 7e6 in float64 and 290 in float32. Lanczos values lie inside the
    spectrum, so that without convergence the number is too small.

    Args:
        op: operator (M, N); a `Problem` stands for its Hessian.
        tolerance: largest residual wanted at each end, as a share of that end's eigenvalue.
        max_products: products after which the search ends, with a warning.
        basis_size: largest number of vectors held.
        memory_limit: bytes for the basis and one product of the operator. None: a quarter of the
            device's memory.
        seed: seed of the random start.
        probe_chunk: vectors multiplied at once where the matrix is assembled.

    Returns:
        The ratio, with the interval that the residuals allow. It is 1 for a multiple of the
        identity, infinite for a singular matrix and NaN for the zero matrix.

    Raises:
        ArgumentError: the operator is declared positive semi-definite and is not, the basis or the
            memory limit is too small, or `tolerance` is below 0.
        RunError: a product is not finite.

    Cost: that of `extreme_eigenvalues`; twice as many products where AᵀA is needed.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> print(hb.condition_number(problem))  # of its Hessian, diag(1, 4)
        4, 4 to 4 by the residuals (4 products)
    """
    op = operator_of(op)
    if not (isinstance(tolerance, Real) and tolerance >= 0):
        raise ArgumentError(f"tolerance: expected a share of at least 0, got {tolerance!r}")
    definite = op.positive_semidefinite
    normal = NormalOperator(op if op.shape[0] >= op.shape[1] else op.adjoint())
    target = op if definite else normal
    rounding = 10 * torch.finfo(working_dtype(op.dtype)).eps * math.sqrt(target.shape[0])
    ends = find_extremes(
        target,
        Wanted(count=1, which="both"),
        allowed=lambda values, scale: (tolerance * values.abs()).clamp_min(rounding * scale),
        max_products=max_products,
        basis_size=basis_size,
        memory_limit=memory_limit,
        seed=seed,
        probe_chunk=probe_chunk,
    )
    if not ends.converged:
        warnings.warn(
            f"condition_number: not converged after {ends.products} products, the value is a lower "
            "bound; raise max_products or basis_size",
            stacklevel=3,
        )
    top, bottom = float(ends.values[0]), max(float(ends.values[-1]), 0.0)
    above, below = float(ends.residuals[0]), float(ends.residuals[-1])
    noise, power = rounding * top, 1.0 if definite else 0.5  # λ of AᵀA to singular values √λ
    unit = 1.0 if definite else math.sqrt(normal.unit)
    return ConditionNumber(
        value=_ratio(top, bottom if bottom > noise else 0.0) ** power,
        lower=max(_ratio(max(top - above, 0.0), bottom + below), 1.0) ** power,
        upper=_ratio(top + above, max(bottom - max(below, noise), 0.0)) ** power,
        largest=unit * top**power,
        smallest=unit * bottom**power,
        converged=ends.converged,
        products=ends.products * round(1 / power),
    )


def _ratio(top: float, bottom: float) -> float:
    if bottom > 0:
        return top / bottom
    return math.inf if top > 0 else math.nan


class NormalOperator(LinearOperator):
    """Normal operator AᵀA / `unit`, since AᵀA itself can leave the range of the dtype.

    `unit` is a power of 4 near the size of A's first products that are not zero; 1 before them.
    """

    def __init__(self, of: LinearOperator) -> None:
        """Wrap `of`; nothing is computed."""
        size = of.shape[1]
        super().__init__((size, size), dtype=of.dtype, device=of.device, positive_semidefinite=True)
        self._of = of
        self._adjoint = of.adjoint()
        self.unit = 1.0
        self._known = False

    def _matmat(self, columns: Tensor) -> Tensor:
        products = multiply(self._of, columns)
        # chosen once: an operator whose unit changes is not linear
        if not self._known and products.any():
            self.unit, self._known = unit_of(products), True
        return self._adjoint @ (products / self.unit)
