"""Check by a random vector whether Lanczos has missed an eigenvalue beyond those found.

Lanczos misses an eigenvector that its start vector is orthogonal to, such as that of a second copy
of an eigenvalue. A new chain therefore starts from a random unit vector r, orthogonal to the basis.
Let u be a unit eigenvector that was missed, so orthogonal to the basis too, and λ its eigenvalue.
Let τ = uᵀr. Since uᵀA v = λ uᵀv, the Lanczos recurrence gives uᵀv of each further vector v of the
chain as τ times a factor, which is known for any λ. The factor grows with each product, the faster
the farther λ lies outside of the other eigenvalues. But |uᵀv| ≤ 1 for unit vectors. So once the
factor at λ = x is √N / ε, a missed eigenvalue beyond x would need |τ| ≤ ε / √N. That is improbable:
τ √N is nearly standard normal, and of size below ε with probability 0.8 ε.

The factor grows slowly where other eigenvalues lie near x. So the chain also ends after as many
products as the search before it, if the next Ritz pair has converged by then.

Letters: N rows of the matrix, k vectors of the basis.

Source: Kuczyński and Woźniakowski (1992) bound the same growth before it is measured.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg.spectra.krylov import KrylovBasis

UNLIKELY = 1e-3
"""ε: a missed eigenvalue stays unseen with 0.8 times this probability."""


class MissedEigenvalueCheck:
    """Chain from a random vector, in which an eigenvector that was missed would show."""

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
