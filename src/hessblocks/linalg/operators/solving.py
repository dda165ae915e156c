"""Conjugate gradients (CG) for (A + damping · I) x = b, with residual and reason of the stop.

Letters: N rows, K right-hand sides, P the preconditioner, r residual, z = P r.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError, RunError, check_whole
from hessblocks.linalg.operators.inner import column_products, unit_of
from hessblocks.linalg.operators.operator import (
    LinearOperator,
    Operand,
    identity_like,
    keeping,
    operator_of,
)
from hessblocks.storage import Tabular

Reason = Literal["converged", "negative curvature", "limit", "rounding"]
SLACK = 10.0
"""A column that converged in the iteration may have this measured residual, in tolerances."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Solution(Tabular):
    """Solution of one system for K right-hand sides."""

    values: Float[Tensor, "N ..."]
    """x, shaped as b."""
    residuals: Float[Tensor, " K"]
    """‖b − A x‖ / ‖b‖ of each column, with the damping in A, from a product at the end."""
    reasons: tuple[Reason, ...]
    """Reason of each column's stop: `converged`, `negative curvature` (a direction p has pᵀAp ≤ 0),
    `limit`, or `rounding` (converged in the iteration, but not by the measured residual)."""
    products: int
    """Products with single vectors spent."""

    @property
    def converged(self) -> bool:
        """True where all columns converged."""
        return all(reason == "converged" for reason in self.reasons)

    def to_rows(self) -> list[dict[str, Any]]:
        """List column, residual and reason of each right-hand side."""
        pairs = zip(self.residuals.tolist(), self.reasons, strict=True)
        return [
            {"column": column, "residual": residual, "reason": reason}
            for column, (residual, reason) in enumerate(pairs)
        ]

    def __str__(self) -> str:
        """Print the number of systems, the worst residual and how they ended."""
        ended = ", ".join(sorted(set(self.reasons)))
        return (
            f"solutions of {len(self.reasons)} systems, residuals up to "
            f"{float(self.residuals.max()):.1g} ({ended}, {self.products} products)"
        )


@keeping
def solve(
    operator: LinearOperator | Operand,
    right: Float[Tensor, "N ..."],
    *,
    damping: float = 0.0,
    preconditioner: LinearOperator | Float[Tensor, " N"] | None = None,
    tolerance: float = 1e-6,
    max_products: int = 1000,
) -> Solution:
    """Solve (A + damping · I) x = b by conjugate gradients, preconditioned where asked.

    Args:
        operator: A, symmetric; positive definite with the damping; a `Problem` stands for its
            Hessian.
        right: b, (N,) or (N, K) of the operator's dtype and device.
        damping: at least 0, in the unit of A.
        preconditioner: P ≈ (A + damping · I)⁻¹, positive definite: an operator, or the entries of
            a diagonal one, such as 1 / (diagonal + damping). It changes the number of products,
            not the solution.
        tolerance: largest ‖b − A x‖ / ‖b‖ of a converged column, with the damping in A.
        max_products: largest number of products with single vectors, for each column.

    Returns:
        x with residual and reason of the stop for each column; if A has negative curvature, the
        last x before it was found.

    Raises:
        ArgumentError: an operator that is not symmetric, a bad damping, tolerance or number, a b
            or preconditioner that does not fit, or a preconditioner that is not positive definite.
        RunError: numbers that are not finite.

    Cost: a product per iteration and column, at most about the root of the condition number times
        ln(2 / tolerance), that of P (A + damping · I) with a preconditioner; four vectors per
        column, and as many products with P.

    Source: Hestenes and Stiefel (1952).
    """
    operator = operator_of(operator)
    precondition = _preconditioning(operator, preconditioner)
    _check(operator, damping, tolerance, max_products)
    damped = operator + damping * identity_like(operator) if damping else operator
    if right.ndim not in (1, 2) or right.shape[0] != operator.shape[0]:
        raise ArgumentError(
            f"right: expected ({operator.shape[0]},) or ({operator.shape[0]}, columns), got "
            f"{tuple(right.shape)}"
        )
    columns = right[:, None] if right.ndim == 1 else right
    units = [unit_of(column) for column in columns.T]  # the squares of b have to stay in range
    unit = torch.tensor(units, dtype=columns.dtype, device=columns.device)
    columns = columns / unit
    values, reasons, products = _conjugate_gradients(
        damped, precondition, columns, tolerance, max_products
    )
    sizes = columns.norm(dim=0)
    # measured, since rounding makes the iteration's residual drift from the true one
    rest = (columns - damped @ values).norm(dim=0) / torch.where(sizes > 0, sizes, 1.0)
    values = values * unit
    if not (torch.isfinite(rest).all() and torch.isfinite(values).all()):
        raise RunError(
            "solve: the products are not finite; look at the weights, or use float64 parameters"
        )
    reasons = tuple(
        "rounding" if reason == "converged" and float(size) > SLACK * tolerance else reason
        for reason, size in zip(reasons, rest, strict=True)
    )
    return Solution(
        values=values[:, 0] if right.ndim == 1 else values,
        residuals=rest.double().cpu(),
        reasons=reasons,
        products=products + columns.shape[1],
    )


def _check(operator: LinearOperator, damping: float, tolerance: float, max_products: int) -> None:
    if not operator.symmetric:
        raise ArgumentError(f"operator: conjugate gradients need a symmetric one, got {operator!r}")
    for name, value in (("damping", damping), ("tolerance", tolerance)):
        if not (isinstance(value, Real) and math.isfinite(value) and value >= 0):
            raise ArgumentError(f"{name}: expected a number of at least 0, got {value!r}")
    check_whole(1, max_products=max_products)


def _preconditioning(
    operator: LinearOperator, preconditioner: LinearOperator | Tensor | None
) -> Callable[[Tensor], Tensor]:
    """Return the function that multiplies columns by P."""
    if preconditioner is None:
        return lambda columns: columns
    if isinstance(preconditioner, LinearOperator):
        if preconditioner.shape == operator.shape:
            return lambda columns: preconditioner @ columns
    elif preconditioner.shape == operator.shape[:1] and bool(
        (preconditioner.isfinite() & (preconditioner > 0)).all()
    ):
        diagonal = preconditioner.to(operator.device, operator.dtype)[:, None]
        return lambda columns: diagonal * columns
    raise ArgumentError(
        f"preconditioner: expected an operator of shape {operator.shape} or the entries "
        f"({operator.shape[0]},) of a diagonal, finite and above 0, such as "
        "1 / (diagonal.abs() + damping)"
    )


def _conjugate_gradients(
    operator: LinearOperator,
    precondition: Callable[[Tensor], Tensor],
    right: Tensor,
    tolerance: float,
    max_steps: int,
) -> tuple[Tensor, tuple[Reason, ...], int]:
    """Iterate on all columns at once; x solution, p direction, bend pᵀA p, weight rᵀz."""
    x, r, p = torch.zeros_like(right), right.clone(), torch.zeros_like(right)
    square = column_products(r, r)
    goal, weight = square * tolerance**2, torch.ones_like(square)
    reasons: list[Reason] = ["limit"] * right.shape[1]
    going = _unconverged(square, goal, reasons, torch.arange(right.shape[1]))
    products = 0
    for _ in range(max_steps):
        if not len(going):
            break
        z = precondition(r[:, going])
        new = column_products(r[:, going], z)
        if (new <= 0).any():
            raise ArgumentError(
                "preconditioner: expected a positive definite one, but there is a residual r with "
                f"rᵀP r = {float(new.min()):.3g}"
            )
        p[:, going] = z + (new / weight[going]).to(x.dtype) * p[:, going]
        weight[going] = new
        products += len(going)
        product = operator @ p[:, going]
        bend = column_products(p[:, going], product)
        bad = ~(bend > 0)  # nan too
        for column in going[bad.cpu()].tolist():
            reasons[column] = "negative curvature"
        good = ~bad
        going, product, bend = going[good.cpu()], product[:, good], bend[good]
        step = (weight[going] / bend).to(x.dtype)
        x[:, going] += step * p[:, going]
        r[:, going] -= step * product
        square = column_products(r[:, going], r[:, going])
        going = _unconverged(square, goal, reasons, going)
    return x, tuple(reasons), products


def _unconverged(square: Tensor, goal: Tensor, reasons: list[Reason], going: Tensor) -> Tensor:
    """Mark the converged columns of `going`, and return the others."""
    done = (square <= goal[going]).cpu()
    for column in going[done].tolist():
        reasons[column] = "converged"
    return going[~done]


class InverseOperator(LinearOperator):
    """Inverse (A + damping · I)⁻¹ by conjugate gradients; see `inverse`."""

    def __init__(
        self, operator: LinearOperator, solver: Callable[[Float[Tensor, "N K"]], Solution]
    ) -> None:
        """Hold A and a solver for columns; nothing is computed."""
        super().__init__(
            operator.shape,
            dtype=operator.dtype,
            device=operator.device,
            symmetric=True,
            positive_semidefinite=operator.positive_semidefinite,
        )
        self._solve = solver

    def _matmat(self, columns: Tensor) -> Tensor:
        solution = self._solve(columns)
        if not solution.converged:
            raise RunError(
                f"inverse: {solution}; use more damping, a larger tolerance or max_products, or "
                "linalg.solve, which returns the solution it has reached"
            )
        return solution.values


def inverse(
    operator: LinearOperator | Operand,
    *,
    damping: float = 0.0,
    preconditioner: LinearOperator | Float[Tensor, " N"] | None = None,
    tolerance: float = 1e-6,
    max_products: int = 1000,
) -> InverseOperator:
    """Invert A + damping · I; each product is solved by conjugate gradients, or refused.

    Args:
        operator: A, symmetric; positive definite with the damping; a `Problem` stands for its
            Hessian.
        damping: at least 0, in the unit of A.
        preconditioner: as `solve` takes it, such as `1 / (hb.diagonal(H).values.abs() + damping)`.
        tolerance: relative residual of each product.
        max_products: with A, for each column.

    Returns:
        An operator. A product with it raises RunError where it does not converge, or where A has
        negative curvature along the way; `solve` gives residual and reason instead.

    Raises:
        ArgumentError: an operator that is not symmetric, a bad damping, tolerance or number, or a
            preconditioner that does not fit.

    Cost: that of `solve` a product.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> hb.inverse(problem, damping=1.0) @ torch.ones(2)  # a damped Newton step
        tensor([0.5000, 0.2000])
    """
    operator = operator_of(operator)
    _check(operator, damping, tolerance, max_products)
    _preconditioning(operator, preconditioner)
    options: dict[str, Any] = {"damping": damping, "preconditioner": preconditioner}
    options |= {"tolerance": tolerance, "max_products": max_products}
    return InverseOperator(operator, partial(solve, operator, **options))
