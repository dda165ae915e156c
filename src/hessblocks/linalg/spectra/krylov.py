"""A growing orthonormal basis and the projection of an operator on it (block Lanczos).

Letters: A symmetric (N, N), V the basis (N, k), T = VᵀA V, b the block, C the coupling to the next
block V': A V = V T + V' C.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg.estimators import Probes, multiply
from hessblocks.linalg.operators import LinearOperator, inner_products, working_dtype

PASSES = 2
NEGLIGIBLE = 100


class KrylovBasis:
    """The basis V, its projection T and the block that comes next.

    Every new block is orthogonalised against the whole basis, twice, so that eigenvalues appear as
    often as they should and no more.
    """

    def __init__(
        self, operator: LinearOperator, *, block: int, room: int, seed: int, probe_chunk: int | None
    ) -> None:
        """Start from Gaussian vectors, which miss no eigenvector.

        Args:
            operator: symmetric operator.
            block: vectors multiplied together.
            room: basis vectors to hold at most.
            seed: of the start.
            probe_chunk: vectors multiplied at once.
        """
        self._operator = operator
        self._probe_chunk = probe_chunk
        self._source = Probes(operator, seed=seed, distribution="gaussian")
        self._dtype = working_dtype(operator.dtype)
        self._storage = torch.empty(
            operator.shape[0], room, dtype=self._dtype, device=operator.device
        )
        self.size = 0
        self.products = 0
        self.projection: Float[Tensor, "k k"] = torch.zeros(0, 0, dtype=torch.float64)
        self.coupling: Float[Tensor, "b k"] = torch.zeros(block, 0, dtype=torch.float64)
        self._next = self._fresh(block, self._storage[:, :0])

    @property
    def vectors(self) -> Float[Tensor, "size k"]:
        """V."""
        return self._storage[:, : self.size]

    @property
    def full(self) -> bool:
        """Whether the next block no longer fits into the room."""
        return self.size + self._next.shape[1] > self._storage.shape[1]

    @property
    def complete(self) -> bool:
        """Whether the basis spans the whole space."""
        return self.size == self._operator.shape[0]

    def extend(self) -> None:
        """Take the next block in and multiply it."""
        width = self._next.shape[1]
        self._storage[:, self.size : self.size + width] = self._next
        self.size += width
        products = multiply(
            self._operator, self._next.to(self._operator.dtype), self._probe_chunk
        ).to(self._dtype)
        self.products += width
        remainder, coefficients = _project_out(products, self.vectors)
        self._grow(coefficients, width)
        self._find_next(remainder)

    def restart(self, rotation: Float[Tensor, "k kept"], values: Float[Tensor, " kept"]) -> None:
        """Keep the Ritz vectors V · rotation alone, with their Ritz values (thick restart)."""
        kept = rotation.shape[1]
        self._storage[:, :kept] = self.vectors @ rotation.to(self._storage)
        self.size = kept
        self.projection = torch.diag(values)

    def _grow(self, coefficients: Tensor, width: int) -> None:
        projection = torch.zeros(self.size, self.size, dtype=torch.float64)
        old = self.size - width
        projection[:old, :old] = self.projection
        projection[:, old:] = coefficients.cpu()
        projection[old:, :old] = coefficients[:old].cpu().T
        corner = projection[old:, old:]
        projection[old:, old:] = (corner + corner.T) / 2
        self.projection = projection

    def _find_next(self, remainder: Tensor) -> None:
        """Split the remainder A V − V T into the next block and its coupling."""
        width = min(remainder.shape[1], self._operator.shape[0] - self.size)
        self.coupling = torch.zeros(width, self.size, dtype=torch.float64)
        if width == 0:
            self._next = remainder[:, :0]
            return
        block, factor = torch.linalg.qr(remainder)
        scale = float(self.projection.abs().max())
        noise = NEGLIGIBLE * torch.finfo(self._dtype).eps * scale
        alive = factor.double().diagonal().abs() > noise
        if not alive.all():
            block = self._replace_dead(block, alive, width)
        else:
            block = torch.linalg.qr(_project_out(block, self.vectors)[0])[0][:, :width]
        self.coupling[:, -remainder.shape[1] :] = inner_products(block, remainder).cpu()
        self._next = block

    def _replace_dead(self, block: Tensor, alive: Tensor, width: int) -> Tensor:
        """Keep the directions above rounding and put fresh random ones for the others."""
        known = block[:, alive][:, :width]
        if known.shape[1]:
            known = torch.linalg.qr(_project_out(known, self.vectors)[0])[0]
        fresh = self._fresh(width - known.shape[1], torch.cat([self.vectors, known], dim=1))
        return torch.cat([known, fresh], dim=1)

    def _fresh(self, count: int, against: Tensor) -> Tensor:
        """Random orthonormal vectors, orthogonal to those of `against`."""
        if count == 0:
            return against[:, :0]
        vectors = self._source.draw(count).to(self._dtype)
        for _ in range(PASSES):
            vectors = torch.linalg.qr(_project_out(vectors, against)[0])[0]
        return vectors


def _project_out(columns: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """The columns without their part in the basis, and their coefficients in it (float64)."""
    coefficients = torch.zeros(
        basis.shape[1], columns.shape[1], dtype=torch.float64, device=basis.device
    )
    for _ in range(PASSES):
        part = inner_products(basis, columns)
        columns = columns - basis @ part.to(basis.dtype)
        coefficients += part
    return columns, coefficients
