"""Eigenvalues at the ends of a spectrum by block Lanczos with thick restarts.

Letters: A the symmetric matrix, V the basis, T = VᵀA V, θ its eigenvalues (Ritz values),
k vectors of the basis.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.errors import ArgumentError, check_name
from hessblocks.linalg.estimators import Eigenvalues, check_probes, check_square, multiply
from hessblocks.linalg.operators import LinearOperator, working_dtype
from hessblocks.linalg.spectra.krylov import KrylovBasis

Which = Literal["largest", "smallest", "both"]
Allowed = Callable[[Float[Tensor, " wanted"], float], Float[Tensor, " wanted"]]
SAFETY = 0.5


def extreme_eigenvalues(
    op: LinearOperator,
    count: int = 1,
    which: Which = "both",
    *,
    tolerance: float | None = None,
    max_products: int = 1000,
    basis_size: int = 64,
    seed: int = 0,
    probe_chunk: int | None = None,
) -> Eigenvalues:
    """The algebraically largest or smallest eigenvalues of a symmetric operator, or both.

    Block Lanczos: the block is as wide as the eigenvalues asked for at one end (at least 2), so
    that eigenvalues up to that multiplicity are all found; re-orthogonalised against the whole
    basis; restarted with the best Ritz vectors when the basis is full.

    Args:
        op: symmetric operator (N, N).
        count: eigenvalues wanted at each end; all N if the ends meet.
        which: `largest`, `smallest` or `both` ends.
        tolerance: largest residual ‖A v − θ v‖ wanted, as a share of the largest |θ|; None: the
            root of the dtype's rounding (1.5e-8 in float64, 3e-4 in float32).
        max_products: products with single vectors after which the search ends, with a warning.
        basis_size: vectors held at most; memory is that times N numbers.
        seed: of the random start.
        probe_chunk: vectors multiplied at once; bounds the operator's memory.

    Returns:
        Values in falling order, residuals measured with one more product each, and whether all are
        within the tolerance. A residual bounds the distance to the nearest eigenvalue.

    Raises:
        ArgumentError: the operator is not symmetric, or the basis is too small for what is asked.
        RunError: a product is not finite.

    Cost: as many products as the gaps need, at most `max_products` and one more for each value.

    Source: Golub and Underwood (1977), block Lanczos; Wu and Simon (2000), thick restart.
    """
    check_square("extreme_eigenvalues", op, symmetric=True)
    check_name("extreme_eigenvalues: which", which, get_args(Which))
    if count < 1:
        raise ArgumentError(f"count: expected at least 1 eigenvalue at each end, got {count}")
    check_probes("extreme_eigenvalues", 1, at_least=1, probe_chunk=probe_chunk)
    share = math.sqrt(torch.finfo(working_dtype(op.dtype)).eps) if tolerance is None else tolerance
    found = find_extremes(
        op,
        count,
        which,
        allowed=lambda chosen, scale: torch.full_like(chosen, share * scale),
        max_products=max_products,
        basis_size=basis_size,
        seed=seed,
        probe_chunk=probe_chunk,
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
    count: int,
    which: Which,
    *,
    allowed: Allowed,
    max_products: int,
    basis_size: int,
    seed: int,
    probe_chunk: int | None,
) -> Eigenvalues:
    """Block Lanczos until the residuals are allowed, without a warning where they are not.

    Args:
        op: symmetric operator.
        count: eigenvalues wanted at each end.
        which: `largest`, `smallest` or `both` ends.
        allowed: the largest residual of each value, from the values and the largest |θ|.
        max_products: products with single vectors after which the search ends.
        basis_size: basis vectors held at most.
        seed: of the random start.
        probe_chunk: vectors multiplied at once; None: a whole block.

    Returns:
        Values in falling order; `converged` says whether the measured residuals are allowed.

    Raises:
        ArgumentError: the basis is too small for what is asked.
    """
    size = op.shape[0]
    block, room = min(max(count, 2), size), min(basis_size, size)
    total = len(_positions(size, count, which))
    if room < min(total + 2 * block, size):
        raise ArgumentError(
            f"basis_size: expected at least {total + 2 * block} for {total} "
            f"eigenvalues in blocks of {block}, got {basis_size}"
        )
    basis = KrylovBasis(op, block=block, room=room, seed=seed, probe_chunk=probe_chunk)
    values, rotation, scale = _iterate(basis, count, which, allowed, max_products)
    values, rotation = values.flip(0), rotation.flip(1)
    vectors = (basis.vectors @ rotation.to(basis.vectors)).to(op.dtype)
    difference = multiply(op, vectors, probe_chunk).double()
    difference -= vectors.double() * values.to(vectors.device)
    residuals = torch.linalg.vector_norm(difference, dim=0).cpu()
    return Eigenvalues(
        values=values,
        residuals=residuals,
        vectors=vectors,
        converged=bool((residuals <= allowed(values, scale)).all()),
        products=basis.products + len(values),
    )


def _iterate(
    basis: KrylovBasis, count: int, which: Which, allowed: Allowed, max_products: int
) -> tuple[Float[Tensor, " wanted"], Float[Tensor, "k wanted"], float]:
    """Grow the basis until the wanted values are settled; they, their rotation, the largest |θ|."""
    ends = 2 if which == "both" else 1
    while True:
        basis.extend()
        values, rotation = torch.linalg.eigh(basis.projection)
        scale = float(values.abs().max())
        if basis.size >= ends * count or basis.complete:
            chosen = _positions(basis.size, count, which)
            residuals = torch.linalg.vector_norm(basis.coupling @ rotation[:, chosen], dim=0)
            settled = bool((residuals <= SAFETY * allowed(values[chosen], scale)).all())
            if settled or basis.complete or basis.products >= max_products:
                return values[chosen], rotation[:, chosen], scale
        if basis.full:
            extra = max((basis.size // 2 - ends * count) // ends, 0)
            kept = _positions(basis.size, count + extra, which)
            basis.restart(rotation[:, kept], values[kept])


def _positions(size: int, count: int, which: Which) -> Int[Tensor, " chosen"]:
    """Where up to `count` at the ends named stand among `size` rising values; the upper end goes first."""
    top = 0 if which == "smallest" else min(count, size)
    bottom = 0 if which == "largest" else min(count, size - top)
    return torch.cat([torch.arange(bottom), torch.arange(size - top, size)])
