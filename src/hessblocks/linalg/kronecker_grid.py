"""A matrix of exact operators: several parameter groups or heads side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from hessblocks.linalg.bounded_cache import BoundedCache
from hessblocks.linalg.kronecker import MEMORY_LIMIT, ExactOperator


class BlockGrid(ExactOperator):
    """Operators in a rectangle, each built when it is needed and kept while memory allows."""

    def __init__(
        self,
        block: Callable[[int, int], ExactOperator],
        *,
        row_lengths: Sequence[int],
        column_lengths: Sequence[int],
        like: Tensor,
        symmetric: bool = False,
        positive_semidefinite: bool = False,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        """Describe the rectangle; no block is built yet.

        Args:
            block: builds the operator in grid row i and grid column j.
            row_lengths: rows of the blocks of each grid row.
            column_lengths: columns of the blocks of each grid column.
            like: a tensor with the dtype and device of the operator.
            symmetric: whether block (i, j) is the transpose of block (j, i); then i ≤ j is built only.
            positive_semidefinite: whether no eigenvalue of the whole is negative; implies `symmetric`.
            memory_limit: bytes of blocks to keep for the next operation.
        """
        super().__init__(
            (sum(row_lengths), sum(column_lengths)),
            dtype=like.dtype,
            device=like.device,
            symmetric=symmetric,
            positive_semidefinite=positive_semidefinite,
        )
        self._build = block
        self._rows = _slices(row_lengths)
        self._columns = _slices(column_lengths)
        self._cache: BoundedCache[ExactOperator] = BoundedCache(memory_limit)
        self._memory_limit = memory_limit

    @property
    def nbytes(self) -> int:
        """Nothing that outlives its use: the blocks kept are bounded by the memory limit."""
        return 0

    def block(self, i: int, j: int) -> ExactOperator:
        """The operator in grid row i and grid column j."""
        if self.symmetric and i > j:
            return self.block(j, i).adjoint()
        return self._cache.get((i, j), lambda: self._build(i, j))

    def adjoint(self) -> ExactOperator:
        """The transposed grid of transposed blocks."""
        if self.symmetric:
            return self
        return BlockGrid(
            lambda i, j: self.block(j, i).adjoint(),
            row_lengths=[s.stop - s.start for s in self._columns],
            column_lengths=[s.stop - s.start for s in self._rows],
            like=torch.empty(0, dtype=self.dtype, device=self.device),
            memory_limit=self._memory_limit,
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

    def _rmatmat(self, columns: Tensor) -> Tensor:
        return self.adjoint() @ columns

    def add_dense(self, out: Tensor) -> None:
        """Add the assembled blocks; of a symmetric grid the lower half is copied from the upper."""
        for i, j in self._visited():
            rows, columns = self._rows[i], self._columns[j]
            if self.symmetric and i < j:
                assembled = self.block(i, j).dense()
                out[rows, columns] += assembled
                out[columns, rows] += assembled.T
            else:
                self.block(i, j).add_dense(out[rows, columns])

    def diagonal(self) -> Tensor:
        """The diagonals of the diagonal blocks."""
        return torch.cat([self.block(i, i).diagonal() for i in range(len(self._rows))])

    def frobenius_norm(self) -> float:
        """Root of the squared norms of the blocks; of a symmetric grid only half are computed."""
        total = 0.0
        for i, j in self._visited():
            weight = 2.0 if self.symmetric and i < j else 1.0
            total += weight * self.block(i, j).frobenius_norm() ** 2
        return math.sqrt(total)

    def _visited(self) -> list[tuple[int, int]]:
        """Places of the blocks that define the grid: all, or the upper half."""
        return [
            (i, j)
            for i in range(len(self._rows))
            for j in range(len(self._columns))
            if not self.symmetric or i <= j
        ]


def _slices(lengths: Sequence[int]) -> list[slice]:
    ends = list(accumulate(lengths))
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
