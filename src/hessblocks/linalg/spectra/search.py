"""Search for extreme eigenvalues: which are wanted, when they are settled, what may be missed.

Letters: N rows of the matrix, k vectors of the basis, θ Ritz values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessblocks.errors import ArgumentError, check_memory_limit, in_units
from hessblocks.linalg.estimators import Eigenvalues, assemble
from hessblocks.linalg.operators import LinearOperator, default_limit, unit_of, working_dtype
from hessblocks.linalg.spectra.krylov import KrylovBasis, check_definite
from hessblocks.linalg.spectra.lookout import Lookout

Which = Literal["largest", "smallest", "both", "magnitude", "LA", "SA", "LM"]
SAME: dict[str, Which] = {"LA": "largest", "SA": "smallest", "LM": "magnitude"}
"""scipy's words for ends of a spectrum."""

Allowed = Callable[[Float[Tensor, " wanted"], float], Float[Tensor, " wanted"]]
SAFETY = 0.5
FEW_PRODUCTS, FEW_EACH = 32, 8
"""Products of a search and of each of its values, which hardly one stays below."""
DENSE = 6
"""Matrices held at once, counted, where the operator is assembled."""


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

    @property
    def sides(self) -> Float[Tensor, " sides"]:
        """Sides on which eigenvalues can be missed: 1 above, -1 below."""
        sides = {"largest": [1.0], "smallest": [-1.0]}.get(self.which, [1.0, -1.0])
        return torch.tensor(sides, dtype=torch.float64)

    def among(self, values: Float[Tensor, " k"], more: int = 0) -> Int[Tensor, " chosen"]:
        """Find the wanted values among rising ones, with up to `more` further ones at each end."""
        size, count = len(values), self.count + more
        if self.which == "magnitude":
            return values.abs().sort(stable=True).indices[-count:].sort().values
        top = 0 if self.which == "smallest" else min(count, size)
        bottom = 0 if self.which == "largest" else min(count, size - top)
        return torch.cat([torch.arange(bottom), torch.arange(size - top, size)])

    def edges(self, chosen: Float[Tensor, " wanted"], slack: float) -> Float[Tensor, " sides"]:
        """Find the number on each side beyond which only chosen eigenvalues may lie."""
        if self.which == "magnitude":
            inmost = chosen.abs().min().expand(2)
        else:
            inmost = torch.stack(
                [(side * chosen).sort().values[-self.count] for side in self.sides]
            )
        return self.sides * (inmost + slack)


def find_extremes(
    op: LinearOperator,
    wanted: Wanted,
    *,
    allowed: Allowed,
    max_products: int,
    basis_size: int,
    seed: int,
    probe_chunk: int | None,
    copies: bool = True,
    memory_limit: int | None = None,
    start: Float[Tensor, " N"] | None = None,
) -> Eigenvalues:
    """Run Lanczos until the residuals are small enough; do not warn if they are not.

    Args:
        op: symmetric operator.
        wanted: which eigenvalues.
        allowed: the largest residual of each value, from the values and the largest |θ|.
        max_products: products with single vectors after which the search ends.
        basis_size: vectors held at most.
        seed: seed of the random vectors.
        probe_chunk: vectors multiplied at once where the matrix is assembled.
        copies: whether a random vector looks for what was missed, where several are wanted.
        memory_limit: bytes that vectors may take; None: a quarter of the device's memory.
        start: vector of length 1 to begin with.

    Returns:
        Values in falling order; `converged` says whether the residuals are allowed.

    Raises:
        ArgumentError: the basis or the limit is too small for what is asked, or the operator is
            declared positive semi-definite and is not.
    """
    size = op.shape[0]
    total = min(wanted.ends * wanted.count, size)
    if memory_limit is not None:
        check_memory_limit(memory_limit)
    limit = memory_limit or default_limit(op.device)
    small = size <= max(total, min(FEW_PRODUCTS + FEW_EACH * total, max_products))
    if small and DENSE * size**2 * torch.float64.itemsize <= limit:
        return _exact(op, wanted, allowed, probe_chunk)
    room = _room(op, total, basis_size, limit)
    basis = KrylovBasis(op, room=room, seed=seed, results=total, start=start)
    search = _Search(basis, wanted, allowed, total=total, most=max_products)
    found, sure = search.run(look=copies and wanted.count > 1)
    chosen = found.chosen.flip(0)
    values, rotation = found.values[chosen], found.rotation[:, chosen]
    residuals = basis.residuals(rotation)
    settled = residuals <= allowed(values, float(found.values.abs().max()))
    return Eigenvalues(
        values=values * basis.unit,
        residuals=residuals * basis.unit,
        vectors=basis.combine(rotation).to(op.dtype),
        converged=sure and bool(settled.all()),
        products=basis.products,
        basis_size=room,
        restarts=basis.restarts,
    )


def _room(op: LinearOperator, total: int, basis_size: int, limit: int) -> int:
    """Count the vectors that fit, and refuse fewer than a search needs."""
    least = min(total + 2, op.shape[0] + 1)  # one that is new, and one that comes next
    if basis_size < least:
        raise ArgumentError(
            f"basis_size: expected at least {least} vectors for {total} eigenvalues, got "
            f"{basis_size}"
        )
    each = op.shape[0] * working_dtype(op.dtype).itemsize
    if limit < (least + 1) * each:
        raise ArgumentError(
            f"memory_limit: expected at least {in_units((least + 1) * each)}, {least} vectors for "
            f"{total} eigenvalues and a product, got {in_units(limit)}"
        )
    return min(basis_size, limit // each - 1, op.shape[0] + 1)


def _exact(
    op: LinearOperator, wanted: Wanted, allowed: Allowed, probe_chunk: int | None
) -> Eigenvalues:
    """Assemble the matrix and take its eigenvalues."""
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
    rotation: Float[Tensor, "k k"]
    chosen: Int[Tensor, " wanted"]
    late: Bool[Tensor, " k"]
    """Whether they have not converged yet."""
    limits: Float[Tensor, " k"]
    """Residuals that are allowed."""


class _Search:
    """Search that goes on until the wanted values have converged and none can have been missed."""

    def __init__(
        self, basis: KrylovBasis, wanted: Wanted, allowed: Allowed, *, total: int, most: int
    ) -> None:
        """Hold the basis; `most`: products after which the search ends."""
        self._basis, self._wanted, self._allowed = basis, wanted, allowed
        self._total, self._most = total, most
        self._lookout: Lookout | None = None

    def run(self, *, look: bool) -> tuple[_Ritz, bool]:
        """Grow the basis.

        Args:
            look: whether random vectors look for values that were missed.

        Returns:
            The last Ritz pairs, and whether none was missed.
        """
        found = self._converge()
        while look and not (self._spent or self._clear):
            self._send_lookout(found)
            found = self._converge()
        return found, not look or self._basis.complete or self._clear

    @property
    def _clear(self) -> bool:
        return self._lookout is not None and self._lookout.clear

    @property
    def _spent(self) -> bool:
        enough = self._basis.size >= self._total
        return self._basis.complete or (enough and self._basis.products >= self._most)

    def _converge(self) -> _Ritz:
        """Extend until the wanted values have converged and the lookout is over."""
        while True:
            found = self._extend()
            waiting = self._lookout is not None and not self._lookout.over
            if self._spent or not (found.late[found.chosen].any() or waiting):
                return found
            if self._basis.full:
                more = max((self._basis.size // 2 - self._total) // self._wanted.ends, 0)
                self._keep(found, self._wanted.among(found.values, more))

    def _extend(self) -> _Ritz:
        """Extend the basis and find the Ritz pairs."""
        basis = self._basis
        basis.extend()
        values, rotation = torch.linalg.eigh(basis.projection)
        check_definite(basis.operator, values, basis.unit)
        limits = self._allowed(values, float(values.abs().max()))
        late = (basis.residuals(rotation) > limits) | (basis.size < self._total)
        late |= (basis.coupling @ rotation).abs() > SAFETY * limits
        if self._lookout:
            settled = not bool(late[self._wanted.among(values, 1)].any())
            self._lookout.follow(basis, values, settled=settled)
        return _Ritz(values, rotation, self._wanted.among(values), late, limits)

    def _send_lookout(self, found: _Ritz) -> None:
        """Keep what has converged, and let a random vector search for missed eigenvalues."""
        self._keep(found, found.chosen)
        values = found.values[found.chosen]
        edges = self._wanted.edges(values, float(found.limits.max()))
        self._lookout = Lookout(self._basis, self._wanted.sides, edges, values)

    def _keep(self, found: _Ritz, kept: Int[Tensor, " kept"]) -> None:
        """Restart the basis with some of the pairs."""
        self._basis.restart(found.rotation[:, kept], found.values[kept])
        if self._lookout:
            self._lookout.restarted(found.rotation[:, kept])
