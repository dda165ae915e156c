"""Condition number of an operator, from the ends of a spectrum that Lanczos finds."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hessblocks.linalg.operators import (
    LinearOperator,
    Operand,
    keeping,
    operator_of,
    unit_of,
    working_dtype,
)
from hessblocks.linalg.spectra.lanczos import extreme_eigenvalues


@dataclass(frozen=True, kw_only=True)
class ConditionNumber:
    """Condition number with the interval that the residuals of its eigenvalues allow."""

    value: float
    """Largest over smallest singular value."""
    lower: float
    """The least that the residuals allow."""
    upper: float
    """The most that they allow; infinite if the smallest value may be 0."""


@keeping
def condition_number(
    op: LinearOperator | Operand,
    *,
    max_products: int = 1000,
    memory_limit: int | None = None,
    seed: int = 0,
) -> ConditionNumber:
    """Estimate the condition number σ_1 / σ_n of an operator (M, N), n = min(M, N), by Lanczos.

    Both ends are eigenvalues of A where A is declared positive semi-definite, else of AᵀA. An end
    below δ = 10 ε √n times the largest is rounding and counts as 0, with ε that of the dtype.

    Args:
        op: operator (M, N); a `Problem` stands for its Hessian.
        max_products: products after which the search ends, with a warning.
        memory_limit: see `extreme_eigenvalues`.
        seed: seed of the random vectors.

    Returns:
        The ratio. It is 1 for a multiple of the identity, infinite for a singular matrix and NaN
        for the zero matrix.

    Raises:
        ArgumentError: the operator is declared positive semi-definite and is not, or the memory
            limit is too small.
        RunError: a product is not finite.

    Cost: that of `extreme_eigenvalues`; twice as many products where AᵀA is needed.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> round(hb.condition_number(problem).value, 6)  # of its Hessian, diag(1, 4)
        4.0
    """
    op = operator_of(op)
    definite = op.positive_semidefinite
    target = op if definite else _NormalOperator(op if op.shape[0] >= op.shape[1] else op.adjoint())
    rounding = 10 * torch.finfo(working_dtype(op.dtype)).eps * math.sqrt(target.shape[0])
    search: Any = {"max_products": max_products, "memory_limit": memory_limit, "seed": seed}
    ends = extreme_eigenvalues(target, 1, "both", tolerance=rounding, **search)
    top, bottom = float(ends.values[0]), float(ends.values[-1])
    above, below = (float(residual) + rounding * top for residual in ends.residuals[[0, -1]])
    power = 1.0 if definite else 0.5  # singular values are √λ of AᵀA
    return ConditionNumber(
        value=_ratio(top, bottom if bottom > rounding * top else 0.0) ** power,
        lower=max(_ratio(max(top - above, 0.0), bottom + below), 1.0) ** power,
        upper=_ratio(top + above, max(bottom - below, 0.0)) ** power,
    )


def _ratio(top: float, bottom: float) -> float:
    if bottom > 0:
        return top / bottom
    return math.inf if top > 0 else math.nan


class _NormalOperator(LinearOperator):
    """Normal operator AᵀA in units of a random product's size: it may leave the dtype's range."""

    def __init__(self, of: LinearOperator) -> None:
        size = of.shape[1]
        super().__init__((size, size), dtype=of.dtype, device=of.device, positive_semidefinite=True)
        probe = torch.randn(size, 1, generator=torch.Generator().manual_seed(0))
        self._of, self._adjoint = of, of.adjoint()
        self._unit = unit_of(of @ probe.to(of.device, of.dtype))

    def _matmat(self, columns: Tensor) -> Tensor:
        return (self._adjoint @ ((self._of @ columns) / self._unit)) / self._unit
