"""Kronecker sums over tokens, Σ_n a_n b_nᵀ ⊗ D_n, as operators that are never assembled.

A `BlockGrid` puts exact operators side by side: several parameter groups or heads.

Letters: N tokens; a block has rows (P, R) and columns (T, W); K, columns multiplied together.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations_with_replacement, product

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg.kronecker.gram import aligned, inner_product, inner_product_cost
from hessblocks.linalg.kronecker.terms import KroneckerTerm, distinct
from hessblocks.linalg.operators import LinearOperator, chunks, column_lengths, slices, unit_of

SEVERAL = 8
"""Number of terms from which on pairs that share no entry are looked for, and left out."""
MEMORY_LIMIT = 1 << 29
"""Default number of bytes that the intermediate results of one operation may take."""


class ExactOperator(LinearOperator):
    """Operator whose trace, diagonal and Frobenius norm are known without random probes."""

    @abc.abstractmethod
    def adjoint(self) -> ExactOperator:
        """Return the transposed operator."""

    @abc.abstractmethod
    def diagonal(self) -> Float[Tensor, " size"]:
        """Compute the main diagonal of a square operator."""

    @abc.abstractmethod
    def frobenius_norm(self) -> float:
        """Compute the square root of the sum of all squared entries."""

    @abc.abstractmethod
    def add_dense(self, out: Float[Tensor, "rows columns"]) -> None:
        """Add the assembled matrix to `out`, a view of the operator's shape."""

    def _rmatmat(self, columns: Tensor) -> Tensor:
        return self.adjoint() @ columns

    def trace(self) -> float:
        """Sum the diagonal."""
        return float(self.diagonal().sum(dtype=torch.float64))

    def dense(self) -> Float[Tensor, "rows columns"]:
        """Assemble the matrix."""
        out = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        self.add_dense(out)
        return out


class KroneckerSum(ExactOperator):
    """Kronecker sum: Σ over terms and tokens of (row vector)(column vector)ᵀ ⊗ matrix."""

    def __init__(
        self,
        terms: Sequence[KroneckerTerm],
        *,
        row_shape: tuple[int, int],
        column_shape: tuple[int, int],
        like: Float[Tensor, "..."],
        symmetric: bool = False,
        positive_semidefinite: bool = False,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        """Collect terms of one shape; none at all is the zero operator.

        Args:
            terms: each with `row_shape` and `column_shape` as below.
            row_shape: the two lengths of the row index, outer first; a weight's (in, out).
            column_shape: the same of the column index.
            like: a tensor with the dtype and device of the operator.
            symmetric: whether the sum equals its transpose.
            positive_semidefinite: whether no eigenvalue is negative; implies `symmetric`.
            memory_limit: bytes for the intermediate results of one operation.
        """
        super().__init__(
            (math.prod(row_shape), math.prod(column_shape)),
            dtype=like.dtype,
            device=like.device,
            symmetric=symmetric,
            positive_semidefinite=positive_semidefinite,
        )
        self.row_shape = row_shape
        self.column_shape = column_shape
        self.memory_limit = memory_limit
        self.terms = _merged([distinct(term.collapsed()) for term in terms], memory_limit)
        for term in self.terms:
            assert (term.row_shape, term.column_shape) == (row_shape, column_shape)

    def adjoint(self) -> ExactOperator:
        """Transpose each term; nothing is computed."""
        if self.symmetric:
            return self
        terms = [term.adjoint() for term in self.terms]
        return self._sum_like(terms, self.column_shape, self.row_shape)

    def _sum_like(
        self, terms: list[KroneckerTerm], row_shape: tuple[int, int], column_shape: tuple[int, int]
    ) -> KroneckerSum:
        """Collect terms of another shape in the same dtype, device and memory."""
        return KroneckerSum(
            terms,
            row_shape=row_shape,
            column_shape=column_shape,
            like=torch.empty(0, dtype=self.dtype, device=self.device),
            memory_limit=self.memory_limit,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors and matrices of all terms."""
        return sum(term.nbytes for term in self.terms)

    def _matmat(self, columns: Tensor) -> Tensor:
        """Cost: N (T W + R W + P R) K multiplications; N (W + R) K numbers, chunked."""
        out = columns.new_zeros(self.shape[0], columns.shape[1])
        for term in self.terms:
            _, R, _, W = term.sizes
            for piece in self._pieces(term, (R + W + term.matrices.rank) * columns.shape[1]):
                out += piece.product(columns)
        return out

    def add_dense(self, out: Float[Tensor, "rows columns"]) -> None:
        """Add the assembled sum to `out`. Cost: N P T R W multiplications."""
        grid = out.view(*self.row_shape, *self.column_shape)
        for term in self.terms:
            P, R, T, W = term.sizes
            for piece in self._pieces(term, P * T + R * W):
                grid += piece.assembled()

    def diagonal(self) -> Float[Tensor, " size"]:
        """Compute the main diagonal of a square sum. Cost: N P R multiplications."""
        out = torch.zeros(self.shape[0], dtype=self.dtype, device=self.device)
        for term in self.terms:
            P, R, _, _ = term.sizes
            for piece in self._pieces(term, 2 * P * R):
                out += piece.diagonal()
        return out

    def frobenius_norm(self) -> float:
        """Compute the Frobenius norm by Gram matrices or by assembling, whichever is cheaper.

        Returns:
            The norm; 0 for a sum without terms.

        Cost: N² (P + T + R W) or N P T R W multiplications; the assembled matrix is never held
        whole beyond the memory limit.
        """
        # terms may cancel, and rounding then leaves less than nothing
        return self._unit * math.sqrt(max(self._square, 0.0))

    @cached_property
    def _unit(self) -> float:
        """Power of 4 near the size of the largest term; squares in it stay within float64."""
        return max((unit for term in self.terms if (unit := _unit_of(term))), default=1.0)

    @cached_property
    def _square(self) -> float:
        """Squared norm, in units."""
        by_gram = sum(inner_product_cost(a, b) for a, b in self._meeting)
        by_assembling = sum(term.work for term in self.terms)
        return self._gram_square() if by_gram <= by_assembling else self._assembled_square()

    @cached_property
    def _meeting(self) -> list[tuple[KroneckerTerm, KroneckerTerm]]:
        """Pairs of terms that share an entry of the matrix, as far as their vectors tell."""
        pairs = list(combinations_with_replacement(self.terms, 2))
        if len(self.terms) < SEVERAL:
            return pairs
        places = {id(term): term.places() for term in self.terms}

        def meet(first: KroneckerTerm, second: KroneckerTerm) -> bool:
            if not aligned(first, second):
                return True
            sides = zip(places[id(first)], places[id(second)], strict=True)
            return all(bool((a & b).any()) for a, b in sides)

        return [(a, b) for a, b in pairs if meet(a, b)]

    def _gram_square(self) -> float:
        return sum(
            (1.0 if a is b else 2.0)
            * inner_product(a, b, unit=self._unit, memory_limit=self.memory_limit)
            for a, b in self._meeting
        )

    def _assembled_square(self) -> float:
        """Sum the squares of the assembled matrix, some of its rows at a time."""
        row_numbers = self.row_shape[1] * self.shape[1] + 1
        numbers = self.memory_limit // (3 * self.dtype.itemsize)
        total = 0.0
        for rows in chunks(self.row_shape[0], max(1, numbers // row_numbers)):
            terms = [term.narrow_rows(rows) for term in self.terms]
            shape = (rows.stop - rows.start, self.row_shape[1])
            strip = self._sum_like(terms, shape, self.column_shape)
            sizes = column_lengths(strip.dense()) / self._unit
            total += float(sizes.square().sum())
        return total

    def _pieces(self, term: KroneckerTerm, numbers: int) -> Iterator[KroneckerTerm]:
        """Yield some tokens at a time: results, `numbers` a token, stay within the limit."""
        step = self.memory_limit // (2 * self.dtype.itemsize * max(1, numbers))
        return map(term.select, chunks(term.tokens, max(1, step)))


def _unit_of(term: KroneckerTerm) -> float:
    """Find a power of 4 near the size of a term; 0 for a zero one."""
    factors = (term.row, term.column, term.matrices.right, term.matrices.left)
    return math.prod(unit_of(t) if t.any() else 0.0 for t in factors if t is not None)


def _merged(terms: Sequence[KroneckerTerm], memory_limit: int) -> tuple[KroneckerTerm, ...]:
    """Add up matrices of terms with equal vectors within the limit; drop terms without tokens."""
    merged: list[KroneckerTerm] = []
    for term in terms:
        for k, other in enumerate(merged):
            if term.sum_bytes(other) <= memory_limit and _share_vectors(term, other):
                merged[k] = replace(term, matrices=other.matrices.plus(term.matrices))
                break
        else:
            if term.tokens:
                merged.append(term)
    return tuple(merged)


def _share_vectors(first: KroneckerTerm, second: KroneckerTerm) -> bool:
    vectors = ((first.row, second.row), (first.column, second.column))
    return aligned(first, second) and all(a is b or torch.equal(a, b) for a, b in vectors)


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
