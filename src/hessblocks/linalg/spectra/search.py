"""Search for extreme eigenvalues by Lanczos: which are wanted, when they have converged.

Once they have, a random vector checks whether an eigenvalue was missed.

Letters: N rows of the matrix, k vectors of the basis, θ Ritz values.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessblocks.errors import ArgumentError, check_memory_limit, check_whole, in_units
from hessblocks.linalg.estimators import Eigenvalues, assemble
from hessblocks.linalg.operators import (
    LinearOperator,
    default_limit,
    unit_of,
    working_dtype,
)
from hessblocks.linalg.spectra.krylov import KrylovBasis, check_definite

UNLIKELY = 1e-3
"""ε: a missed eigenvalue stays unseen with 0.8 times this probability."""


class MissedEigenvalueCheck:
    """Chain from a random vector, in which an eigenvector that was missed would show.

    Lanczos misses an eigenvector that its start vector is orthogonal to, such as that of a second
    copy of an eigenvalue. A new chain therefore starts from a random unit vector r, orthogonal to
    the basis. Let u be a unit eigenvector that was missed, so orthogonal to the basis too, and λ
    its eigenvalue. Let τ = uᵀr. Since uᵀA v = λ uᵀv, the Lanczos recurrence gives uᵀv of each
    further vector v of the chain as τ times a factor, which is known for any λ. The factor grows
    with each product, the faster the farther λ lies outside of the other eigenvalues. But |uᵀv| ≤ 1
    for unit vectors. So once the factor at λ = x is √N / ε, a missed eigenvalue beyond x would need
    |τ| ≤ ε / √N. That is improbable: τ √N is nearly standard normal, and of size below ε with
    probability 0.8 ε.

    The factor grows slowly where other eigenvalues lie near x. So the chain also ends after as many
    products as the search before it, if the next Ritz pair has converged by then.

    Source: Kuczyński and Woźniakowski (1992) bound the same growth before it is measured.
    """

    def __init__(
        self,
        basis: KrylovBasis,
        sides: Float[Tensor, " sides"],
        edges: Float[Tensor, " sides"],
        values: Float[Tensor, " k"],
    ) -> None:
        """Replace the next vector of the basis by a random one.

        Args:
            basis: basis of the Ritz vectors found.
            sides: 1 to look for missed eigenvalues above the edge, -1 for below.
            edges: x of each side, in the unit of the basis.
            values: Ritz values found, in the unit of the basis.
        """
        basis.renew()
        self._sides, self._edges = sides, edges * basis.unit
        self._count_found = self._count_beyond(values * basis.unit)
        self._factors = torch.zeros(basis.size, len(edges), dtype=torch.float64)
        """For each vector v of the basis uᵀv / τ at λ = x; 0 for vectors from before the chain."""
        self._next = torch.ones(len(edges), dtype=torch.float64)
        """The factor of the vector that comes next; 1 for r."""
        self._enough = math.sqrt(basis.length) / UNLIKELY
        self._product_limit = 2 * basis.products
        self._missed = self._done = False

    @property
    def over(self) -> bool:
        """True if a missed eigenvalue has shown, or the chain is long enough."""
        return self._missed or self._done

    @property
    def clear(self) -> bool:
        """True if the chain is long enough, and no missed eigenvalue has shown."""
        return self._done and not self._missed

    def follow(self, basis: KrylovBasis, values: Float[Tensor, " k"], *, settled: bool) -> None:
        """Update the factors after a Lanczos step, and check whether the chain is over.

        Args:
            basis: basis after the step.
            values: all its Ritz values, in its unit.
            settled: whether the wanted Ritz pairs and the next ones have converged.
        """
        self._missed = self._count_beyond(values * basis.unit) > self._count_found
        self._factors = torch.cat([self._factors, self._next[None]])
        rest = self._edges / (basis.unit or 1.0) * self._next - basis.projection[-1] @ self._factors
        beta = basis.coupling[-1]
        # at β = 0 the space is invariant: it holds each eigenvector that r has a part in
        self._next = rest / beta if beta else torch.full_like(rest, math.inf)
        grown = float(self._next.abs().min()) >= self._enough
        self._done = self._done or grown or (settled and basis.products >= self._product_limit)

    def restarted(self, rotation: Float[Tensor, "k kept"]) -> None:
        """Update the factors after a restart with the Ritz vectors V · rotation."""
        self._factors = rotation.T @ self._factors

    def _count_beyond(self, values: Float[Tensor, " k"]) -> int:
        return int((self._sides * values[:, None] > self._sides * self._edges).sum())


Which = Literal["largest", "smallest", "both", "magnitude", "LA", "SA", "LM"]
SAME: dict[str, Which] = {"LA": "largest", "SA": "smallest", "LM": "magnitude"}
"""scipy's names for the ends of a spectrum."""

SAFETY = 0.5
"""Share of the allowed residual that the coupling to the next vector may have. A random vector that
takes its place leaves this part in the residual, and its own chain adds another."""
FEW_PRODUCTS, FEW_PER_VALUE = 32, 8
"""Fewest products of most searches: a constant, and an addition per wanted value."""
DENSE_COPIES = 6
"""Number of float64 matrices (N, N) in memory if the operator is assembled."""


ResidualLimits = Callable[[Float[Tensor, " wanted"], float], Float[Tensor, " wanted"]]
"""From values and the largest |θ| to the largest allowed residual of each value."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Wanted eigenvalues: how many, at which ends of the spectrum."""

    count: int
    """Number of eigenvalues at each end."""
    which: Which
    """`largest`, `smallest`, `both` or `magnitude`."""

    @property
    def ends(self) -> int:
        """Number of ends: 1 or 2."""
        return 2 if self.which == "both" else 1

    @property
    def sides(self) -> Float[Tensor, " sides"]:
        """Sides on which eigenvalues can be missed: 1 above the chosen ones, -1 below."""
        sides = {"largest": [1.0], "smallest": [-1.0]}.get(self.which, [1.0, -1.0])
        return torch.tensor(sides, dtype=torch.float64)

    def among(self, values: Float[Tensor, " k"], extra: int = 0) -> Int[Tensor, " chosen"]:
        """Find indices of the wanted values, and of `extra` at each end, among rising values."""
        size, count = len(values), self.count + extra
        if self.which == "magnitude":
            return values.abs().sort(stable=True).indices[-count:].sort().values
        top = 0 if self.which == "smallest" else min(count, size)
        bottom = 0 if self.which == "largest" else min(count, size - top)
        return torch.cat([torch.arange(bottom), torch.arange(size - top, size)])

    def edges(self, chosen: Float[Tensor, " wanted"], slack: float) -> Float[Tensor, " sides"]:
        """Compute the number on each side beyond which only the chosen eigenvalues may lie.

        Args:
            chosen: wanted values found.
            slack: tolerance of their residuals.

        Returns:
            The innermost chosen value of each side, moved outwards by the slack.
        """
        if self.which == "magnitude":
            innermost = chosen.abs().min().expand(2)
        else:
            innermost = torch.stack(
                [(side * chosen).sort().values[-self.count] for side in self.sides]
            )
        return self.sides * (innermost + slack)


def find_extremes(
    op: LinearOperator,
    wanted: Wanted,
    *,
    allowed: ResidualLimits,
    max_products: int,
    basis_size: int,
    seed: int,
    probe_chunk: int | None,
    copies: bool = True,
    memory_limit: int | None = None,
    start: Float[Tensor, " N"] | None = None,
) -> Eigenvalues:
    """Run Lanczos until the residuals are within their limits; do not warn if they are not.

    Args:
        op: symmetric operator.
        wanted: which eigenvalues.
        allowed: function from values and the largest |θ| to the largest residual of each value.
        max_products: products with single vectors after which the search ends. If they are twice
            the matrix's rows, half are kept to assemble it where the search fails.
        basis_size: largest number of basis vectors in memory.
        seed: seed of the random vectors.
        probe_chunk: vectors multiplied at once where the matrix is assembled.
        copies: whether a random vector looks for missed eigenvalues, if several are wanted.
        memory_limit: bytes that vectors may take; None: a quarter of the device's memory.
        start: vector of length 1 to begin with; None: a random one.

    Returns:
        Values in falling order. `converged` is true if all residuals are within their limits, and
        no eigenvalue was missed.

    Raises:
        ArgumentError: `basis_size` or `memory_limit` is too small for the wanted eigenvalues, or
            the operator is declared positive semi-definite and is not.
    """
    size = op.shape[0]
    total = min(wanted.ends * wanted.count, size)
    check_whole(max_products=max_products, basis_size=basis_size)
    if memory_limit is not None:
        check_memory_limit(memory_limit)
    limit = memory_limit or default_limit(op.device)
    fits = DENSE_COPIES * size**2 * torch.float64.itemsize <= limit
    small = size <= max(total, min(FEW_PRODUCTS + FEW_PER_VALUE * total, max_products))
    if small and fits:
        return _exact(op, wanted, allowed, probe_chunk)
    room = _room(op, total, basis_size, limit)
    # the search gets at least as many products as assembling; a basis of N vectors is exact anyway
    reserved = size if fits and room <= size and 2 * size <= max_products else 0
    basis = KrylovBasis(op, room=room, seed=seed, results=total, start=start)
    search = _Search(basis, wanted, allowed, total=total, max_products=max_products - reserved)
    ritz, none_missed = search.run(check=copies and wanted.count > 1)
    chosen = ritz.chosen.flip(0)
    values, rotation = ritz.values[chosen], ritz.rotation[:, chosen]
    residuals = basis.residuals(rotation)
    within = residuals <= allowed(values, float(ritz.values.abs().max()))
    converged = none_missed and bool(within.all())
    if reserved and not converged:
        products = basis.products
        del basis, search  # before matrices of that size are made
        exact = _exact(op, wanted, allowed, probe_chunk)
        return replace(exact, products=products + exact.products)
    return Eigenvalues(
        values=values * basis.unit,
        residuals=residuals * basis.unit,
        vectors=basis.combine(rotation).to(op.dtype),
        converged=converged,
        products=basis.products,
        basis_size=room,
        restarts=basis.restarts,
    )


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


def _exact(
    op: LinearOperator, wanted: Wanted, allowed: ResidualLimits, probe_chunk: int | None
) -> Eigenvalues:
    """Assemble the matrix and compute its eigenvalues by dense algebra."""
    matrix = assemble(op, probe_chunk).double().cpu()
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
        converged=bool((residuals <= allowed(values, scale)).all()),
        products=op.shape[0],
        method="exact",
    )


@dataclass(frozen=True)
class _Ritz:
    """Ritz pairs of a basis, in its unit, and which of them are wanted."""

    values: Float[Tensor, " k"]
    """Ritz values θ, rising."""
    rotation: Float[Tensor, "k k"]
    """Coefficients of the Ritz vectors in the basis, a column each."""
    chosen: Int[Tensor, " wanted"]
    """Indices of the wanted pairs."""
    unconverged: Bool[Tensor, " k"]
    """Whether each pair has not converged yet."""
    limits: Float[Tensor, " k"]
    """Largest allowed residual of each pair."""


class _Search:
    """Search until the wanted values have converged and no random vector shows a missed one."""

    def __init__(
        self,
        basis: KrylovBasis,
        wanted: Wanted,
        allowed: ResidualLimits,
        *,
        total: int,
        max_products: int,
    ) -> None:
        """Hold the basis.

        Args:
            basis: basis without vectors.
            wanted: which eigenvalues.
            allowed: see `find_extremes`.
            total: number of eigenvalues at all ends.
            max_products: products after which the search ends.
        """
        self._basis, self._wanted, self._allowed = basis, wanted, allowed
        self._total, self._max_products = total, max_products
        self._missed_check: MissedEigenvalueCheck | None = None

    def run(self, *, check: bool) -> tuple[_Ritz, bool]:
        """Extend the basis to the end of the search.

        Args:
            check: whether random vectors look for eigenvalues that were missed.

        Returns:
            The last Ritz pairs, and whether none was missed; true without a check.
        """
        ritz = self._converge()
        while check and not (self._ended or self._clear):
            self._start_missed_check(ritz)
            ritz = self._converge()
        return ritz, not check or self._basis.complete or self._clear

    @property
    def _clear(self) -> bool:
        return self._missed_check is not None and self._missed_check.clear

    @property
    def _ended(self) -> bool:
        """True if the basis spans the whole space, or all products are used up."""
        enough = self._basis.size >= self._total
        return self._basis.complete or (enough and self._basis.products >= self._max_products)

    def _converge(self) -> _Ritz:
        """Extend the basis until the wanted values have converged and the check is over."""
        while True:
            ritz = self._extend()
            waiting = self._missed_check is not None and not self._missed_check.over
            if self._ended or not (ritz.unconverged[ritz.chosen].any() or waiting):
                return ritz
            if self._basis.full:
                extra = max((self._basis.size // 2 - self._total) // self._wanted.ends, 0)
                self._restart(ritz, self._wanted.among(ritz.values, extra))

    def _extend(self) -> _Ritz:
        """Extend the basis by a vector and compute the Ritz pairs."""
        basis = self._basis
        basis.extend()
        values, rotation = torch.linalg.eigh(basis.projection)
        check_definite(basis.operator, values, basis.unit)
        limits = self._allowed(values, float(values.abs().max()))
        unconverged = (basis.residuals(rotation) > limits) | (basis.size < self._total)
        unconverged |= (basis.coupling @ rotation).abs() > SAFETY * limits
        if self._missed_check:
            settled = not bool(unconverged[self._wanted.among(values, 1)].any())
            self._missed_check.follow(basis, values, settled=settled)
        return _Ritz(values, rotation, self._wanted.among(values), unconverged, limits)

    def _start_missed_check(self, ritz: _Ritz) -> None:
        """Keep the wanted pairs alone, and start a chain from a random vector beside them."""
        self._restart(ritz, ritz.chosen)
        values = ritz.values[ritz.chosen]
        edges = self._wanted.edges(values, float(ritz.limits.max()))
        self._missed_check = MissedEigenvalueCheck(self._basis, self._wanted.sides, edges, values)

    def _restart(self, ritz: _Ritz, chosen: Int[Tensor, " kept"]) -> None:
        """Restart the basis with some of the Ritz pairs (thick restart)."""
        self._basis.restart(ritz.rotation[:, chosen], ritz.values[chosen])
        if self._missed_check:
            self._missed_check.restarted(ritz.rotation[:, chosen])
