"""Block Lanczos: a growing orthonormal Krylov basis, and an operator's projection on it.

Letters: A symmetric (N, N), V the basis (N, k), T = VᵀA V, b vectors in a block, C the coupling to
the next block V'. They fulfil A V = V T + V' C, but for rounding and for a lack of symmetry in A.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.linalg.estimators import Probes, multiply
from hessblocks.linalg.operators import LinearOperator, unit_of, working_dtype
from hessblocks.linalg.spectra.orthogonal import NEGLIGIBLE, orthogonalise, rotate

NOISE = 0.01
"""Length of the random part added to a given start, so that no eigenvector is missed for good."""

SURELY_NEGATIVE = 1e-6
"""A value below zero by this share of the largest |θ| is no rounding, not even of float32 inside a
float64 model. In lower precision the share is the root of the dtype's rounding."""


def check_definite(
    operator: LinearOperator, values: Float[Tensor, "*k"], unit: float = 1.0
) -> None:
    """Refuse an operator declared positive semi-definite where Lanczos met a negative value.

    A Ritz value is vᵀA v of a unit vector v. Of a positive semi-definite A no such number is
    negative.

    Args:
        operator: A.
        values: Ritz values.
        unit: unit of the values.

    Raises:
        ArgumentError: one of them is negative beyond rounding.
    """
    share = max(SURELY_NEGATIVE, math.sqrt(torch.finfo(operator.dtype).eps))
    lowest = float(values.min())
    if operator.positive_semidefinite and lowest < -share * float(values.abs().max()):
        raise ArgumentError(
            f"{operator!r}: it is declared positive semi-definite, but Lanczos met vᵀA v = "
            f"{lowest * unit:.4g} of a "
            "unit vector; declare it symmetric only"
        )


class KrylovBasis:
    """Krylov basis V of block Lanczos, its projection T and the block that comes next.

    Every new vector is orthogonalised against the whole basis, so that eigenvalues appear as often
    as they should and no more. Memory is the basis and two blocks: the next one, and the products
    that become it. T, C and residuals are in `unit`, so that their squares stay in the range of any
    dtype.
    """

    def __init__(
        self,
        operator: LinearOperator,
        *,
        block: int,
        room: int,
        seed: int,
        results: int = 0,
        probe_chunk: int | None = None,
        start: Float[Tensor, "N some"] | None = None,
    ) -> None:
        """Start from Gaussian vectors, which miss no eigenvector.

        Args:
            operator: symmetric operator.
            block: vectors multiplied together.
            room: basis vectors to hold at most.
            seed: of the start.
            results: vectors that `combine` will be asked for.
            probe_chunk: vectors multiplied at once.
            start: vectors of length 1 to begin with; they are shared out among those of the block.
        """
        self._operator = operator
        self._probe_chunk = probe_chunk
        self._source = Probes(operator, seed=seed, distribution="gaussian")
        self._dtype = working_dtype(operator.dtype)
        self._length = operator.shape[0]
        head = min(results, room)
        self._stacks = [self._empty(head), self._empty(room - head)]
        self._room, self.size, self.products = room, 0, 0
        self.unit = 0.0  # until a product is not zero
        self.projection: Float[Tensor, "k k"] = torch.zeros(0, 0, dtype=torch.float64)
        self._coupling = torch.zeros(block, 0, dtype=torch.float64)
        self._lost = torch.zeros(0, 0, dtype=torch.float64)
        self._next = self._empty(block)
        for number in range(block):
            self._draw(number, None if start is None else start[:, number::block].sum(1))

    @property
    def vectors(self) -> Float[Tensor, "N k"]:
        """Basis vectors V, copied together."""
        return torch.cat(self._filled()).T

    @property
    def full(self) -> bool:
        """True where the next block no longer fits into the room."""
        return self.size + len(self._next) > self._room

    @property
    def complete(self) -> bool:
        """True where the basis spans the whole space."""
        return self.size == self._length

    def extend(self) -> None:
        """Take the next block in and multiply it."""
        block = self._next
        for row in block:
            self._row(self.size).copy_(row)
            self.size += 1
        self.products += len(block)
        # in place: the basis has the block by now, and another one would be memory
        block.copy_(multiply(self._operator, block.T.to(self._operator.dtype), self._probe_chunk).T)
        self._to_units(block)
        self._find_next()

    def residuals(self, rotation: Float[Tensor, "k some"]) -> Float[Tensor, " some"]:
        """Compute ‖A v − θ v‖ of the Ritz vectors V · rotation; no product is made for it."""
        coupled = (self._coupling @ rotation).square().sum(0)
        lost = torch.einsum("ks,kl,ls->s", rotation, self._lost, rotation).clamp_min(0)
        return (coupled + lost).sqrt()

    def restart(self, rotation: Float[Tensor, "k kept"], values: Float[Tensor, " kept"]) -> None:
        """Keep the Ritz vectors V · rotation alone, with their Ritz values (thick restart)."""
        rotate(self._filled(), rotation)
        self.size = rotation.shape[1]
        self.projection = torch.diag(values)
        self._coupling = self._coupling @ rotation
        self._lost = rotation.T @ self._lost @ rotation

    def combine(self, rotation: Float[Tensor, "k results"]) -> Float[Tensor, "N results"]:
        """Compute V · rotation in the memory of the basis, which ends here."""
        rotate(self._filled(), rotation)
        head = self._stacks[0]
        self._stacks = []
        return head[: rotation.shape[1]].T

    def _to_units(self, products: Float[Tensor, "b N"]) -> None:
        """Divide products by the unit in place; larger ones than before make the unit grow."""
        unit = unit_of(products) if products.any() else 0.0
        if unit > self.unit:
            share = self.unit / unit
            self.projection *= share
            self._coupling *= share
            self._lost *= share**2
            self.unit = unit
        products /= self.unit or 1.0

    def _find_next(self) -> None:
        """Orthogonalise A V' column by column to the next block; T and C take the coefficients."""
        block, old = self._next, self.size - len(self._next)
        width = min(len(block), self._length - self.size)
        coupled = self._coupling.any(0).nonzero()
        near = int(coupled[0]) if len(coupled) else old
        inner = torch.zeros(self.size, len(block), dtype=torch.float64)
        outer = torch.zeros(len(block), self.size, dtype=torch.float64)
        lost = torch.zeros(len(block), dtype=torch.float64)
        known = float(self.projection.abs().max()) if old else 0.0
        alive = 0
        for number, row in enumerate(block):
            found, left = orthogonalise(row, [*self._filled(), block[:alive]], near)
            inner[:, number] = found[: self.size]
            outer[:alive, old + number] = found[self.size :]
            scale = max(float(inner.abs().max()), known)
            noise = NEGLIGIBLE * torch.finfo(self._dtype).eps * scale
            if alive < width and left > noise:
                torch.div(row, left, out=block[alive])
                outer[alive, old + number] = left
                alive += 1
            else:
                lost[number] = left
        self._next = block[:width]
        for number in range(alive, width):  # a Krylov space has ended
            self._draw(number)
        self._grow(inner, lost)
        self._coupling = outer[:width]

    def _grow(self, inner: Float[Tensor, "k b"], lost: Float[Tensor, " b"]) -> None:
        """Border T with the new block's coefficients; note what the symmetric T leaves out."""
        old = self.size - len(lost)
        projection = torch.zeros(self.size, self.size, dtype=torch.float64)
        projection[:old, :old] = self.projection
        projection[:, old:], projection[old:, :old] = inner, inner[:old].T
        corner = inner[old:]  # symmetric but for rounding, or for an operator that is not
        projection[old:, old:] = (corner + corner.T) / 2
        self.projection = projection
        uneven = torch.cat([self._coupling - inner[:old].T, (corner - corner.T) / 2], dim=1)
        self._lost = torch.block_diag(self._lost, lost.square().diag()) + uneven.T @ uneven

    def _draw(self, number: int, start: Float[Tensor, " N"] | None = None) -> None:
        """Put a random vector, or a start with a little of one, into the next block.

        It is made orthogonal to all before it.
        """
        row = self._next[number]
        row.copy_(self._source.draw(1)[:, 0])
        if start is not None:
            row *= NOISE / self._length**0.5
            row += start
        for _ in range(2):  # what is left of a vector in the span is rounding
            _, left = orthogonalise(row, [*self._filled(), self._next[:number]], 0)
            row /= left

    def _empty(self, rows: int) -> Tensor:
        return torch.empty(rows, self._length, dtype=self._dtype, device=self._operator.device)

    def _filled(self) -> list[Tensor]:
        head, tail = self._stacks
        return [head[: self.size], tail[: max(self.size - len(head), 0)]]

    def _row(self, number: int) -> Tensor:
        head, tail = self._stacks
        return head[number] if number < len(head) else tail[number - len(head)]
