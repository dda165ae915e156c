"""Proof by a random vector that no eigenvalue beyond those found was missed.

Let u be a unit eigenvector of A that the basis has no part in, with eigenvalue λ: another copy of
an eigenvalue, say. A random unit vector r, orthogonal to the basis, has a part τ = uᵀr in it. From
uᵀA v = λ uᵀv follows uᵀv of every vector v of the chain that r begins, as a multiple of τ. It grows
with each product, the faster the farther λ lies outside of the other eigenvalues. No part of a unit
vector is above 1. So once the multiple is √N / ε at λ = x, all |τ| with eigenvalues from x on are
below ε / √N, and that is rare: τ √N is nearly normal, and of size below ε with probability 0.8 ε.

Where the edge is as near to other eigenvalues as the tolerance, that takes long. A chain is also
over once it has taken as many products as the search before it, and the next pair has converged.

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


class Lookout:
    """Chain of a random vector, and the part that a missed eigenvector would have in it."""

    def __init__(
        self,
        basis: KrylovBasis,
        sides: Float[Tensor, " sides"],
        edges: Float[Tensor, " sides"],
        values: Float[Tensor, " k"],
    ) -> None:
        """Begin the chain.

        Args:
            basis: holds the eigenvectors found.
            sides: 1 where no eigenvalue above the edge should be missed, -1 for below.
            edges: numbers x, in the basis' unit.
            values: Ritz values found.
        """
        basis.renew()
        self._sides, self._edges = sides, edges * basis.unit
        self._known = self._beyond(values * basis.unit)
        self._within = torch.zeros(basis.size, len(edges), dtype=torch.float64)
        self._next = torch.ones(len(edges), dtype=torch.float64)
        self._enough = math.sqrt(basis.length) / UNLIKELY
        self._longer = 2 * basis.products
        self._missed = self._sure = False

    @property
    def over(self) -> bool:
        """True if an eigenvalue was missed, or surely none."""
        return self._missed or self._sure

    @property
    def clear(self) -> bool:
        """True if surely no eigenvalue was missed."""
        return self._sure and not self._missed

    def follow(self, basis: KrylovBasis, values: Float[Tensor, " k"], *, settled: bool) -> None:
        """Follow a step of the basis; `settled`: the next pair has converged too."""
        self._missed = self._beyond(values * basis.unit) > self._known
        self._within = torch.cat([self._within, self._next[None]])
        rest = self._edges / (basis.unit or 1.0) * self._next - basis.projection[-1] @ self._within
        left = basis.coupling[-1]
        # a chain that has ended holds all that its first vector has a part in
        self._next = rest / left if left else torch.full_like(rest, math.inf)
        grown = float(self._next.abs().min()) >= self._enough
        self._sure = self._sure or grown or (settled and basis.products >= self._longer)

    def restarted(self, rotation: Float[Tensor, "k kept"]) -> None:
        """Follow a restart of the basis."""
        self._within = rotation.T @ self._within

    def _beyond(self, values: Float[Tensor, " k"]) -> int:
        return int((self._sides * values[:, None] > self._sides * self._edges).sum())
