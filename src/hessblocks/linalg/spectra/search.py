"""Search for extreme eigenvalues by Lanczos: which are wanted, when they have converged.

Once they have, a random vector checks whether an eigenvalue was missed.

Letters: N rows of the matrix, k vectors of the basis, θ Ritz values.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessblocks.linalg.estimators import Eigenvalues
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
            innermost = (self.sides[:, None] * chosen).sort().values[:, -self.count]
        return self.sides * (innermost + slack)


@dataclass(frozen=True)
class Ritz:
    """Ritz pairs of a basis, in its unit, and which of them are wanted."""

    values: Float[Tensor, " k"]
    """Ritz values θ, rising."""
    rotation: Float[Tensor, "k k"]
    """Coefficients of the Ritz vectors in the basis, a column each."""
    chosen: Int[Tensor, " wanted"]
    """Indices of the wanted pairs."""
    unconverged: Bool[Tensor, " k"]
    """Whether each pair has not converged yet."""
    limit: float
    """Largest allowed residual."""


class Search:
    """Search until the wanted values have converged and no random vector shows a missed one."""

    def __init__(
        self, basis: KrylovBasis, wanted: Wanted, share: float, *, total: int, max_products: int
    ) -> None:
        """Hold the basis.

        Args:
            basis: basis without vectors.
            wanted: which eigenvalues.
            share: largest residual, as a share of the largest |θ|.
            total: number of eigenvalues at all ends.
            max_products: products after which the search ends.
        """
        self._basis, self._wanted, self._share = basis, wanted, share
        self._total, self._max_products = total, max_products
        self._missed_check: MissedEigenvalueCheck | None = None

    def run(self, *, check: bool) -> Eigenvalues:
        """Extend the basis to the end of the search; nothing else can be done with it afterwards.

        Args:
            check: whether random vectors look for eigenvalues that were missed.

        Returns:
            Values in falling order; converged if no residual is too large and none was missed.
        """
        ritz, basis = self._converge(), self._basis
        while check and not (self._ended or self._clear):
            # keep the wanted pairs alone, and start a chain from a random vector beside them
            self._restart(ritz, ritz.chosen)
            found = ritz.values[ritz.chosen]
            edges = self._wanted.edges(found, ritz.limit)
            self._missed_check = MissedEigenvalueCheck(basis, self._wanted.sides, edges, found)
            ritz = self._converge()
        none_missed = not check or basis.complete or self._clear
        chosen = ritz.chosen.flip(0)
        values, rotation = ritz.values[chosen], ritz.rotation[:, chosen]
        residuals = basis.residuals(rotation)
        return Eigenvalues(
            values=values * basis.unit,
            residuals=residuals * basis.unit,
            vectors=basis.combine(rotation).to(basis.operator.dtype),
            converged=none_missed and bool((residuals <= ritz.limit).all()),
            products=basis.products,
            basis_size=basis.room,
            restarts=basis.restarts,
        )

    @property
    def _clear(self) -> bool:
        return self._missed_check is not None and self._missed_check.clear

    @property
    def _ended(self) -> bool:
        """True if the basis spans the whole space, or all products are used up."""
        enough = self._basis.size >= self._total
        return self._basis.complete or (enough and self._basis.products >= self._max_products)

    def _converge(self) -> Ritz:
        """Extend the basis until the wanted values have converged and the check is over."""
        while True:
            ritz = self._extend()
            waiting = self._missed_check is not None and not self._missed_check.over
            if self._ended or not (ritz.unconverged[ritz.chosen].any() or waiting):
                return ritz
            if self._basis.full:
                extra = max((self._basis.size // 2 - self._total) // self._wanted.ends, 0)
                self._restart(ritz, self._wanted.among(ritz.values, extra))

    def _extend(self) -> Ritz:
        """Extend the basis by a vector and compute the Ritz pairs."""
        basis = self._basis
        basis.extend()
        values, rotation = torch.linalg.eigh(basis.projection)
        check_definite(basis.operator, values, basis.unit)
        limit = self._share * float(values.abs().max())
        unconverged = (basis.residuals(rotation) > limit) | (basis.size < self._total)
        unconverged |= (basis.coupling @ rotation).abs() > SAFETY * limit
        if self._missed_check:
            settled = not bool(unconverged[self._wanted.among(values, 1)].any())
            self._missed_check.follow(basis, values, settled=settled)
        return Ritz(values, rotation, self._wanted.among(values), unconverged, limit)

    def _restart(self, ritz: Ritz, chosen: Int[Tensor, " kept"]) -> None:
        """Restart the basis with some of the Ritz pairs (thick restart)."""
        self._basis.restart(ritz.rotation[:, chosen], ritz.values[chosen])
        if self._missed_check:
            self._missed_check.restarted(ritz.rotation[:, chosen])
