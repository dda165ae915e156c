"""Block matrix of exact operators: several parameter groups or heads side by side."""

import math
from collections.abc import Callable, Sequence
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg.kronecker.sum import ExactOperator
from hessblocks.linalg.operators import slices


class BlockGrid(ExactOperator):
    """Block matrix whose blocks are made for each use and freed afterwards."""

    def __init__(
        self,
        block: Callable[[int, int], ExactOperator],
        *,
        row_lengths: Sequence[int],
        column_lengths: Sequence[int],
        like: Float[Tensor, "..."],
        norm: Callable[[int, int], float] | None = None,
        symmetric: bool = False,
        positive_semidefinite: bool = False,
    ) -> None:
        """Describe the grid; no block is made yet.

        Args:
            block: returns the operator in grid row i and grid column j; it may cache operators.
            row_lengths: number of rows of the blocks in each grid row.
            column_lengths: number of columns of the blocks in each grid column.
            like: a tensor with the dtype and device of the operator.
            norm: returns the Frobenius norm of that block, perhaps cached; None: use `block`.
            symmetric: whether block (i, j) is the transpose of block (j, i); then only blocks with
                i ≤ j are made.
            positive_semidefinite: whether no eigenvalue of the whole is negative; implies
                `symmetric`.
        """
        super().__init__(
            (sum(row_lengths), sum(column_lengths)),
            dtype=like.dtype,
            device=like.device,
            symmetric=symmetric,
            positive_semidefinite=positive_semidefinite,
        )
        self._give = block
        self._norm = norm or (lambda i, j: self.block(i, j).frobenius_norm())
        self._rows = slices(row_lengths)
        self._columns = slices(column_lengths)

    def block(self, i: int, j: int) -> ExactOperator:
        """Return the operator in grid row i and grid column j."""
        if self.symmetric and i > j:
            return self.block(j, i).adjoint()
        return self._give(i, j)

    def adjoint(self) -> ExactOperator:
        """Transpose the grid and each of its blocks."""
        if self.symmetric:
            return self
        return BlockGrid(
            lambda i, j: self.block(j, i).adjoint(),
            row_lengths=[s.stop - s.start for s in self._columns],
            column_lengths=[s.stop - s.start for s in self._rows],
            like=torch.empty(0, dtype=self.dtype, device=self.device),
            norm=lambda i, j: self._norm(j, i),
        )

    def _matmat(self, columns: Tensor) -> Tensor:
        out = columns.new_zeros(self.shape[0], columns.shape[1])
        for i, j in self._visited():
            rows, piece = self._rows[i], self._columns[j]
            block = self.block(i, j)
            out[rows] += block @ columns[piece]
            if self.symmetric and i < j:
                out[self._rows[j]] += block.adjoint() @ columns[self._columns[i]]
        return out

    def add_dense(self, out: Float[Tensor, "rows columns"]) -> None:
        """Add the assembled blocks; of a symmetric grid the lower half is copied from the upper."""
        for i, j in self._visited():
            rows, columns = self._rows[i], self._columns[j]
            if self.symmetric and i < j:
                assembled = self.block(i, j).dense()
                out[rows, columns] += assembled
                out[columns, rows] += assembled.T
            else:
                self.block(i, j).add_dense(out[rows, columns])

    def diagonal(self) -> Float[Tensor, " size"]:
        """Join the diagonals of the diagonal blocks."""
        return torch.cat([self.block(i, i).diagonal() for i in range(len(self._rows))])

    def frobenius_norm(self) -> float:
        """Combine the blocks' norms; of a symmetric grid only half of them are computed."""
        norms = []
        for i, j in self._visited():
            norms += [self._norm(i, j)] * (2 if self.symmetric and i < j else 1)
        return math.hypot(*norms)

    def _visited(self) -> list[tuple[int, int]]:
        """List the blocks that define the grid: all, or the upper half."""
        places = product(range(len(self._rows)), range(len(self._columns)))
        return [(i, j) for i, j in places if i <= j or not self.symmetric]
