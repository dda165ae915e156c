"""Lanczos with thick restarts: eigenvalues at the ends of the spectrum of a symmetric operator.

Letters: A the symmetric matrix (N, N), V the basis, T = VᵀA V, θ its eigenvalues (Ritz values),
k vectors of the basis.

The idea: V is an orthonormal basis of v, A v, A²v, … One matvec a step extends it. T is a small
tridiagonal matrix, and its outermost eigenvalues approach those of A within few steps:

>>> def lanczos(matvec, start, steps):
...     basis, diagonal, beside = [start / start.norm()], [], []
...     for _ in range(steps):
...         new = matvec(basis[-1])
...         diagonal.append(basis[-1] @ new)
...         for v in basis:  # without rounding the last two would do
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
below adds four things. Blocks of vectors find multiple eigenvalues. A thick restart keeps the best
Ritz vectors when the basis is full. Residuals ‖A v − θ v‖ say how far each value has come, without
a further matvec. A unit keeps squares in the range of the dtype.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.errors import ArgumentError, check_name
from hessblocks.linalg.estimators import Eigenvalues, check_probes, check_square
from hessblocks.linalg.operators import LinearOperator, Operand, operator_of, working_dtype
from hessblocks.linalg.spectra.krylov import KrylovBasis, check_definite

Which = Literal["largest", "smallest", "both", "magnitude", "LA", "SA", "LM"]
SAME: dict[str, Which] = {"LA": "largest", "SA": "smallest", "LM": "magnitude"}
"""scipy's words for ends of a spectrum."""

Allowed = Callable[[Float[Tensor, " wanted"], float], Float[Tensor, " wanted"]]
SAFETY = 0.5


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Eigenvalues that are looked for: how many, at which ends."""

    count: int
    """Eigenvalues at each end named."""
    which: Which
    """`largest`, `smallest`, `both` or `magnitude`."""

    @property
    def ends(self) -> int:
        """Number of ends: 1 or 2."""
        return 2 if self.which == "both" else 1

    def among(self, values: Float[Tensor, " k"], more: int = 0) -> Int[Tensor, " chosen"]:
        """Find the wanted ones among rising values, with up to `more` further ones at each end."""
        size, count = len(values), self.count + more
        if self.which == "magnitude":
            return values.abs().sort(stable=True).indices[-count:].sort().values
        top = 0 if self.which == "smallest" else min(count, size)
        bottom = 0 if self.which == "largest" else min(count, size - top)
        return torch.cat([torch.arange(bottom), torch.arange(size - top, size)])


def extreme_eigenvalues(
    op: LinearOperator | Operand,
    count: int = 1,
    which: Which = "both",
    *,
    tolerance: float | None = None,
    max_products: int = 1000,
    basis_size: int = 64,
    seed: int = 0,
    probe_chunk: int | None = None,
    start: Eigenvalues | Float[Tensor, "N ..."] | None = None,
) -> Eigenvalues:
    """Find extreme eigenvalues of a symmetric operator by block Lanczos with thick restarts.

    Blocks are as wide as the eigenvalues asked for at one end, so that eigenvalues up to that
    multiplicity are all found. Each new vector is orthogonalised against the whole basis. A full
    basis is restarted with its best Ritz vectors.

    Args:
        op: symmetric operator (N, N); a `Problem` stands for its Hessian.
        count: eigenvalues wanted at each end; all N if the ends meet.
        which: algebraically `largest` or `smallest`, `both` ends, or `magnitude`, the largest |θ|;
            also scipy's `LA`, `SA` and `LM`.
        tolerance: largest residual ‖A v − θ v‖ wanted, as a share of the largest |θ|; None: the
            root of the dtype's rounding (1.5e-8 in float64, 3e-4 in float32).
        max_products: products with single vectors after which the search ends, with a warning.
        basis_size: vectors held at most, besides two more; memory is that times N numbers.
        seed: of the random start.
        probe_chunk: vectors multiplied at once; bounds the operator's memory.
        start: vectors, or the result of a call, that was found for an operator near this one. They
            are shared out among the vectors of the first block, with 1 % of a random vector each.
            An eigenvalue that they have no part in is found late, or not before the search ends.

    Returns:
        Values in falling order, their residuals, and whether all are within the tolerance.
        Residuals follow from the products that were made. Each bounds the distance to the nearest
        eigenvalue.

    Raises:
        ArgumentError: the operator is not symmetric, or is declared positive semi-definite and is
            not; the basis is too small for what is asked, a tolerance below 0, or a start that does
            not fit.
        RunError: a product is not finite.

    Cost: as many products as the gaps need, at most `max_products` and a block. For each product
    the basis is read twice.

    Source: Golub and Underwood (1977), block Lanczos; Wu and Simon (2000), thick restart.
    """
    op = operator_of(op)
    check_square("extreme_eigenvalues", op, symmetric=True)
    check_name("extreme_eigenvalues: which", which, get_args(Which))
    if count < 1:
        raise ArgumentError(f"count: expected at least 1 eigenvalue at each end, got {count}")
    if tolerance is not None and not tolerance >= 0:
        raise ArgumentError(f"tolerance: expected a share of at least 0, got {tolerance}")
    check_probes("extreme_eigenvalues", 1, at_least=1, probe_chunk=probe_chunk)
    share = math.sqrt(torch.finfo(working_dtype(op.dtype)).eps) if tolerance is None else tolerance
    found = find_extremes(
        op,
        Wanted(count=count, which=SAME.get(which, which)),
        allowed=lambda chosen, scale: torch.full_like(chosen, share * scale),
        max_products=max_products,
        basis_size=basis_size,
        seed=seed,
        probe_chunk=probe_chunk,
        start=_start(op, start),
    )
    if not found.converged:
        warnings.warn(
            f"extreme_eigenvalues: not converged after {found.products} products: largest residual "
            f"{float(found.residuals.max()):.2g}, wanted {share:.2g} of the largest |eigenvalue|; "
            "raise max_products, basis_size or tolerance",
            stacklevel=2,
        )
    return found


def find_extremes(
    op: LinearOperator,
    wanted: Wanted,
    *,
    allowed: Allowed,
    max_products: int,
    basis_size: int,
    seed: int,
    probe_chunk: int | None,
    start: Float[Tensor, "N some"] | None = None,
) -> Eigenvalues:
    """Run Lanczos until the residuals are allowed, without a warning where they are not.

    Args:
        op: symmetric operator.
        wanted: which eigenvalues.
        allowed: the largest residual of each value, from the values and the largest |θ|.
        max_products: products with single vectors after which the search ends.
        basis_size: basis vectors held at most.
        seed: of the random start.
        probe_chunk: vectors multiplied at once; None: all.
        start: vectors of length 1 to begin with.

    Returns:
        Values in falling order; `converged` says whether the residuals are allowed.

    Raises:
        ArgumentError: the basis is too small for what is asked, or the operator is declared
            positive semi-definite and is not.
    """
    size = op.shape[0]
    block, total = min(wanted.count, size), min(wanted.ends * wanted.count, size)
    least = min(total + 2 * block, size)
    if basis_size < least:
        raise ArgumentError(
            f"basis_size: expected at least {least} for {total} "
            f"eigenvalues in blocks of {block}, got {basis_size}"
        )
    held = max(basis_size - 2 * (block - 1), least)  # two blocks are held beside the basis
    basis = KrylovBasis(
        op,
        block=block,
        room=min(held, size, max(max_products, total) + block),
        seed=seed,
        results=total,
        probe_chunk=probe_chunk,
        start=start,
    )
    values, rotation, scale = _iterate(op, basis, wanted, allowed, max_products)
    values, rotation = values.flip(0), rotation.flip(1)
    residuals = basis.residuals(rotation)
    return Eigenvalues(
        values=values * basis.unit,
        residuals=residuals * basis.unit,
        vectors=basis.combine(rotation).to(op.dtype),
        converged=bool((residuals <= allowed(values, scale)).all()),
        products=basis.products,
    )


def _iterate(
    op: LinearOperator,
    basis: KrylovBasis,
    wanted: Wanted,
    allowed: Allowed,
    max_products: int,
) -> tuple[Float[Tensor, " wanted"], Float[Tensor, "k wanted"], float]:
    """Grow the basis until the wanted values are settled.

    Returns:
        The values, their rotation and the largest |θ|, all in the basis' unit.
    """
    ends, total = wanted.ends, wanted.ends * wanted.count
    while True:
        basis.extend()
        values, rotation = torch.linalg.eigh(basis.projection)
        scale = float(values.abs().max())
        check_definite(op, values, basis.unit)
        if basis.size >= total or basis.complete:
            chosen = wanted.among(values)
            residuals = basis.residuals(rotation[:, chosen])
            settled = bool((residuals <= SAFETY * allowed(values[chosen], scale)).all())
            if settled or basis.complete or basis.products >= max_products:
                return values[chosen], rotation[:, chosen], scale
        if basis.full:
            kept = wanted.among(values, max((basis.size // 2 - total) // ends, 0))
            basis.restart(rotation[:, kept], values[kept])


def _start(op: LinearOperator, start: Any) -> Float[Tensor, "N some"] | None:
    """Scale the vectors to begin with to length 1.

    Returns:
        Columns on the operator's device; None where none were given.

    Raises:
        ArgumentError: they do not fit the operator, or one of them has no direction.
    """
    if start is None:
        return None
    given = start.vectors if isinstance(start, Eigenvalues) else start
    if not isinstance(given, Tensor) or given.ndim not in (1, 2) or len(given) != op.shape[0]:
        shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ArgumentError(
            f"start: expected what extreme_eigenvalues has returned, or vectors ({op.shape[0]},) "
            "or "
            f"({op.shape[0]}, some), got {shape}"
        )
    columns = given.detach().to(op.device, working_dtype(op.dtype)).reshape(op.shape[0], -1)
    lengths = torch.linalg.vector_norm(columns, dim=0, dtype=torch.float64)
    if not columns.shape[1] or not bool(((lengths > 0) & lengths.isfinite()).all()):
        raise ArgumentError("start: expected vectors with a length above 0, all of them finite")
    found: Tensor = columns / lengths.to(columns)
    return found
