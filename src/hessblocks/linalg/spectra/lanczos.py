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
"""

import math
import warnings
from dataclasses import replace
from numbers import Real
from typing import get_args

import torch

from hessblocks.errors import ArgumentError, check_name, check_whole, in_units
from hessblocks.linalg.estimators import Eigenvalues, assemble, check_square
from hessblocks.linalg.operators import (
    LinearOperator,
    Operand,
    default_limit,
    keeping,
    operator_of,
    unit_of,
    working_dtype,
)
from hessblocks.linalg.spectra.krylov import KrylovBasis, check_definite
from hessblocks.linalg.spectra.search import SAME, Search, Wanted, Which

FEW_PRODUCTS, FEW_PER_VALUE = 32, 8
"""Fewest products of most searches: a constant, and an addition per wanted value."""
DENSE_COPIES = 6
"""Number of float64 matrices (N, N) in memory if the operator is assembled."""


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
    copies: bool = True,
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
        copies: whether random vectors look for missed eigenvalues. False spares up to half of the
            products, and misses further copies of an eigenvalue.

    Returns:
        Values in falling order, their residuals, and whether all are within the tolerance.
        Residuals come without further products. Each bounds the distance to the nearest eigenvalue.
        After a random vector, the couplings that earlier chains left behind are added, so that most
        residuals are then too large.

    Raises:
        ArgumentError: the operator is not symmetric, or is declared positive semi-definite and is
            not; `which` is unknown; `count` is below 1 or above N; the basis or the memory limit is
            too small for the wanted eigenvalues; or `tolerance` is below 0.
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
    check_whole(count=count, seed=seed, max_products=max_products, basis_size=basis_size)
    if not 1 <= count <= op.shape[0]:
        raise ArgumentError(
            f"count: expected at least 1 eigenvalue at each end, and at most {op.shape[0]}, the "
            f"number of rows, got {count}"
        )
    if tolerance is not None and not (isinstance(tolerance, Real) and tolerance >= 0):
        raise ArgumentError(f"tolerance: expected a share of at least 0, got {tolerance!r}")
    share = math.sqrt(torch.finfo(working_dtype(op.dtype)).eps) if tolerance is None else tolerance
    if memory_limit is not None:
        check_whole(1, memory_limit=memory_limit)
    wanted, size = Wanted(count=count, which=SAME.get(which, which)), op.shape[0]
    total = min(wanted.ends * count, size)
    limit = memory_limit or default_limit(op.device)
    fits = DENSE_COPIES * size**2 * torch.float64.itemsize <= limit
    small = size <= max(total, min(FEW_PRODUCTS + FEW_PER_VALUE * total, max_products))
    if small and fits:
        eigenvalues = _exact(op, wanted, share)
    else:
        room = _room(op, total, basis_size, limit)
        # the search gets at least as many products as assembling; N vectors are exact anyway
        reserved = size if fits and room <= size and 2 * size <= max_products else 0
        basis = KrylovBasis(op, room=room, seed=seed, results=total)
        search = Search(basis, wanted, share, total=total, max_products=max_products - reserved)
        eigenvalues = search.run(check=copies and count > 1)
        if reserved and not eigenvalues.converged:
            products = basis.products
            del basis, search  # before matrices of that size are made
            exact = _exact(op, wanted, share)
            eigenvalues = replace(exact, products=products + exact.products)
    if not eigenvalues.converged:
        warnings.warn(
            f"extreme_eigenvalues: not converged after {eigenvalues.products} products: largest "
            f"residual {float(eigenvalues.residuals.max()):.2g}, expected {share:.2g} of the "
            "largest |eigenvalue|, and no sign of a missed one in a random vector; raise "
            "max_products, basis_size, memory_limit or tolerance",
            stacklevel=3,
        )
    return eigenvalues


def _room(op: LinearOperator, total: int, basis_size: int, limit: int) -> int:
    """Compute how many basis vectors are held; refuse fewer than `total` eigenvalues need."""
    least = min(total + 2, op.shape[0] + 1)  # a new vector, and the one that comes next
    if basis_size < least:
        raise ArgumentError(
            f"basis_size: expected at least {least} vectors for {total} eigenvalues, got "
            f"{basis_size}"
        )
    vector_bytes = op.shape[0] * working_dtype(op.dtype).itemsize
    if limit < (needed := (least + 1) * vector_bytes):
        raise ArgumentError(
            f"memory_limit: expected at least {in_units(needed)}, {least} vectors for {total} "
            f"eigenvalues and a product, got {in_units(limit)}"
        )
    return min(basis_size, limit // vector_bytes - 1, op.shape[0] + 1)


def _exact(op: LinearOperator, wanted: Wanted, share: float) -> Eigenvalues:
    """Assemble the matrix and compute its eigenvalues by dense algebra."""
    matrix = assemble(op).double().cpu()
    unit = unit_of(matrix)
    matrix /= unit
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    check_definite(op, values, unit)
    chosen = wanted.among(values).flip(0)
    scale = float(values.abs().max())
    values, vectors = values[chosen], vectors[:, chosen]
    residuals = torch.linalg.vector_norm(matrix @ vectors - vectors * values, dim=0)
    return Eigenvalues(
        values=values * unit,
        residuals=residuals * unit,
        vectors=vectors.to(op.device, op.dtype),
        converged=bool((residuals <= share * scale).all()),
        products=op.shape[0],
        method="exact",
    )
