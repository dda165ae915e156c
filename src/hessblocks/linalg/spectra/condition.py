"""Condition number of an operator, by Lanczos at both ends of the spectrum.

Letters: σ_1 largest, σ_n smallest singular value.
"""

import math
import warnings

import torch
from torch import Tensor

from hessblocks.linalg.estimators import ConditionNumber, multiply
from hessblocks.linalg.operators import (
    LinearOperator,
    Operand,
    operator_of,
    unit_of,
    working_dtype,
)
from hessblocks.linalg.spectra.lanczos import Wanted, find_extremes


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

    Both ends are those of the spectrum of A where it is declared positive semidefinite, else of AᵀA
    (AAᵀ for a wide matrix). The smallest eigenvalue of AᵀA is resolved to rounding of the largest.
    Condition numbers above 1/√eps (7e7 in float64, 3e3 in float32) are then infinite. Lanczos
    values lie inside the spectrum, so that without convergence the number is too small.

    Args:
        op: operator (M, N); a `Problem` stands for its Hessian.
        tolerance: largest residual of each end wanted, as a share of its own eigenvalue.
        max_products: products after which the search ends, with a warning.
        basis_size: vectors held at most.
        memory_limit: bytes that the vectors may take, a product of the operator included. None: a
            quarter of the device's memory.
        seed: seed of the random start.
        probe_chunk: vectors multiplied at once where the matrix is assembled.

    Returns:
        The ratio with the interval that the residuals allow; 1 for a multiple of the identity,
        infinite for a singular matrix, nan for the zero matrix.

    Raises:
        ArgumentError: the operator is declared positive semi-definite and is not, or a basis or a
            memory limit is too small.
        RunError: a product is not finite.

    Cost: that of `extreme_eigenvalues`; twice that where AᵀA is needed.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> print(hb.condition_number(problem))  # of its Hessian, diag(1, 4)
        4, 4 to 4 by the residuals (4 products)
    """
    op = operator_of(op)
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
            stacklevel=2,
        )
    top, bottom = float(ends.values[0]), max(float(ends.values[-1]), 0.0)
    above, below = float(ends.residuals[0]), float(ends.residuals[-1])
    noise, power = rounding * top, 1.0 if definite else 0.5  # the power makes them singular values
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
    """Normal operator AᵀA / `unit`; AᵀA itself can leave the range of the dtype.

    `unit` is a power of 4 near the size of A's first products.
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
