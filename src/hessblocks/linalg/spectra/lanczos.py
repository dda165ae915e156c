"""Lanczos with thick restarts: eigenvalues at the ends of the spectrum of a symmetric operator.

Letters: A the symmetric matrix (N, N), V the basis, T = VᵀA V, θ its eigenvalues (Ritz values),
k vectors of the basis.

The idea: V is an orthonormal basis of v, A v, A²v, … One matvec per step extends it. T is a small
tridiagonal matrix, and its outermost eigenvalues approach those of A within few steps:

>>> def lanczos(matvec, start, steps):
...     basis, diagonal, beside = [start / start.norm()], [], []
...     for _ in range(steps):
...         new = matvec(basis[-1])
...         diagonal.append(basis[-1] @ new)
...         for v in basis:  # in exact arithmetic the last two would do
...             new = new - (v @ new) * v
...         beside.append(new.norm())
...         basis.append(new / beside[-1])
...     beside = torch.stack(beside[:-1])
...     T = torch.stack(diagonal).diag() + beside.diag(1) + beside.diag(-1)
...     return torch.linalg.eigvalsh(T)

A diagonal matrix with entries 1, 2, …, 99 and 150, after 20 matvecs:

>>> entries = torch.cat([torch.arange(1.0, 100.0), torch.tensor([150.0])]).double()
>>> found = lanczos(entries.mul, torch.ones(100).double(), steps=20)
>>> [round(float(value), 2) for value in found[[0, -2, -1]]]
[1.06, 98.92, 150.0]

The largest eigenvalue stands apart and is exact by then. The crowded ones take longer. The code
adds four things. A thick restart keeps the best Ritz vectors when the basis is full. Residuals
‖A v − θ v‖ say how far each value has converged, without a further matvec. A second chain, from a
random vector, looks for copies of a multiple eigenvalue, since the chain of one vector finds one
copy only. A common unit of all numbers keeps their squares in the range of the dtype.

The condition number is the ratio of the singular values at both ends.
"""

import math
import warnings
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError, check_name
from hessblocks.linalg.estimators import Eigenvalues, check_probes, check_square, multiply
from hessblocks.linalg.operators import (
    LinearOperator,
    Operand,
    keeping,
    operator_of,
    unit_of,
    working_dtype,
)
from hessblocks.linalg.spectra.search import SAME, Wanted, Which, find_extremes
from hessblocks.storage import Tabular


@keeping
def extreme_eigenvalues(
    op: LinearOperator | Operand,
    count: int = 1,
    which: Which = "both",
    *,
    tolerance: float | None = None,
    max_products: int = 1000,
    basis_size: int = 64,
    memory_limit: int | None = None,
    seed: int = 0,
    probe_chunk: int | None = None,
    copies: bool = True,
    start: Eigenvalues | Float[Tensor, "N ..."] | None = None,
) -> Eigenvalues:
    """Find extreme eigenvalues of a symmetric operator by Lanczos with thick restarts.

    One vector is multiplied at a time, and orthogonalised against the whole basis. A full basis is
    restarted with its best Ritz vectors.

    With `count` above 1, an eigenvalue or a further copy of one may have been missed when all
    values have converged. A chain of products then starts from a random vector orthogonal to the
    basis. It ends when a missed eigenvalue would have shown with a probability of 99.9 %, or when
    it has taken as many products as the search before it. An eigenvalue that it finds is iterated
    to convergence, and another random vector follows.

    A matrix of at most 32 + 8 m rows, for m eigenvalues in all, is assembled instead if it fits the
    memory limit; so is one of at most `max_products` / 2 rows, if the search fails. Its eigenvalues
    are then exact, at the cost of a product for each row.

    Args:
        op: symmetric operator (N, N); a `Problem` stands for its Hessian.
        count: eigenvalues wanted at each end; all N of the matrix if both ends overlap.
        which: `largest` or `smallest` in the algebraic order, `both` ends, or `magnitude`, the
            largest |θ|; also scipy's `LA`, `SA` and `LM`.
        tolerance: largest residual ‖A v − θ v‖ wanted, as a share of the largest |θ|; None: √ε of
            the dtype (1.5e-8 in float64, 3e-4 in float32).
        max_products: products with single vectors after which the search ends, with a warning.
        basis_size: largest number of vectors held.
        memory_limit: bytes for the basis and one product of the operator; the basis is smaller than
            `basis_size` where they do not fit. None: a quarter of the device's memory.
        seed: seed of the random vectors.
        probe_chunk: vectors multiplied at once where the matrix is assembled.
        copies: whether random vectors look for missed eigenvalues. False spares up to half of the
            products, and misses further copies of an eigenvalue.
        start: vectors (N,) or (N, any number), or an earlier result, of an operator near this one.
            The search begins with their sum and 1 % of a random vector. With `count` 1, an
            eigenvector orthogonal to all of them is found late, or not before the search ends.

    Returns:
        Values in falling order, their residuals, and whether all are within the tolerance.
        Residuals come without further products. Each bounds the distance to the nearest eigenvalue.
        After a random vector, the couplings that earlier chains left behind are added, so that most
        residuals are then too large.

    Raises:
        ArgumentError: the operator is not symmetric, or is declared positive semi-definite and is
            not; `which` is unknown; `count` is below 1 or above N; the basis or the memory limit is
            too small for the wanted eigenvalues; `tolerance` is below 0; `probe_chunk` is below 1;
            or `start` has another shape or a vector without a finite length above 0.
        RunError: a product is not finite.

    Cost: more products the smaller the gaps between eigenvalues, at most `max_products`. Each
    product reads the basis twice.

    Source: Wu and Simon (2000), thick restart; Cullum and Donath (1974), restarts with random
    vectors that are orthogonal to what has converged.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> hb.extreme_eigenvalues(problem)  # of its Hessian, diag(1, 4)
        eigenvalues 4, 1 (residuals up to ..., exact)
    """
    op = operator_of(op)
    check_square("extreme_eigenvalues", op, symmetric=True)
    check_name("extreme_eigenvalues: which", which, get_args(Which))
    rest = {"count": count, "seed": seed}
    check_probes("extreme_eigenvalues", 1, at_least=1, probe_chunk=probe_chunk, **rest)
    if not 1 <= count <= op.shape[0]:
        raise ArgumentError(
            f"count: expected at least 1 eigenvalue at each end, and at most {op.shape[0]}, the "
            f"number of rows, got {count}"
        )
    if tolerance is not None and not (isinstance(tolerance, Real) and tolerance >= 0):
        raise ArgumentError(f"tolerance: expected a share of at least 0, got {tolerance!r}")
    share = math.sqrt(torch.finfo(working_dtype(op.dtype)).eps) if tolerance is None else tolerance
    eigenvalues = find_extremes(
        op,
        Wanted(count=count, which=SAME.get(which, which)),
        allowed=lambda values, scale: torch.full_like(values, share * scale),
        max_products=max_products,
        basis_size=basis_size,
        memory_limit=memory_limit,
        seed=seed,
        probe_chunk=probe_chunk,
        copies=copies,
        start=_start(op, start),
    )
    if not eigenvalues.converged:
        warnings.warn(
            f"extreme_eigenvalues: not converged after {eigenvalues.products} products: largest "
            f"residual {float(eigenvalues.residuals.max()):.2g}, expected {share:.2g} of the "
            "largest |eigenvalue|, and no sign of a missed one in a random vector; raise "
            "max_products, basis_size, memory_limit or tolerance",
            stacklevel=2,
        )
    return eigenvalues


def _start(op: LinearOperator, start: Any) -> Float[Tensor, " N"] | None:
    """Sum the given start vectors, each scaled to length 1 and weighted.

    Returns:
        A vector of length 1 on the operator's device; None without start vectors.

    Raises:
        ArgumentError: the vectors do not fit the operator, or one is zero or not finite.
    """
    if start is None:
        return None
    vectors = start.vectors if isinstance(start, Eigenvalues) else start
    if not isinstance(vectors, Tensor) or vectors.ndim not in (1, 2) or len(vectors) != op.shape[0]:
        shape = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
        raise ArgumentError(
            f"start: expected what extreme_eigenvalues has returned, or vectors ({op.shape[0]},) "
            f"or ({op.shape[0]}, columns), got {shape}"
        )
    columns = vectors.detach().to(op.device, working_dtype(op.dtype)).reshape(op.shape[0], -1)
    lengths = torch.linalg.vector_norm(columns, dim=0, dtype=torch.float64)
    if not columns.shape[1] or not bool(((lengths > 0) & lengths.isfinite()).all()):
        raise ArgumentError("start: expected vectors with a length above 0, all of them finite")
    weights = torch.linspace(1, 2, len(lengths), dtype=torch.float64, device=lengths.device)
    total = columns @ (weights / lengths).to(columns)  # unequal weights: v and −v do not cancel
    direction: Tensor = total / torch.linalg.vector_norm(total)
    return direction


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
