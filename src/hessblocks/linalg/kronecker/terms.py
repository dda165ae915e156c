"""Kronecker products with one factor of rank one, a product for each token.

In the first layer of a language model equal tokens at equal positions have equal inputs. A batch of
many sequences may then have few distinct ones, whose matrices are added up.

Letters: N tokens (1 where all tokens share a matrix); P and T, lengths of the row and the column
vectors; R and W, rows and columns of the matrices; K, columns multiplied together; U distinct pairs
of vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hessblocks.linalg.kronecker.matrices import TokenMatrices, upper_triangle
from hessblocks.linalg.operators import chunks, slices

FEWEST = 64
"""Tokens below which looking for equal ones does not pay."""
WIDEST = 8
"""Most numbers of a whole matrix, in those of its thin product, for which it is multiplied out."""
TOGETHER = 1 << 20
"""Numbers of whole matrices that are held at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KroneckerTerm:
    """Kronecker term Σ_n (row_n column_nᵀ) ⊗ D_n; either pair of indices may be swapped.

    Entry (p r), (t w) is Σ_n row_n[p] column_n[t] D_n[r, w]. With `row_swapped` the row index is
    (r p) instead of (p r), with `column_swapped` the column index is (w t) instead of (t w).
    """

    row: Float[Tensor, "N P"]
    """Row vectors, (N, P)."""
    column: Float[Tensor, "N T"]
    """Column vectors, (N, T)."""
    matrices: TokenMatrices
    """Matrices D_n, (N | 1, R, W)."""
    row_swapped: bool = False
    """Whether the matrix index comes first in the row index."""
    column_swapped: bool = False
    """Whether the matrix index comes first in the column index."""

    @property
    def tokens(self) -> int:
        """Number of tokens N."""
        return self.row.shape[0]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Lengths (P, R, T, W)."""
        return self.row.shape[1], self.matrices.rows, self.column.shape[1], self.matrices.columns

    @property
    def row_shape(self) -> tuple[int, int]:
        """Two lengths that the row index runs over, outer one first."""
        P, R, _, _ = self.sizes
        return (R, P) if self.row_swapped else (P, R)

    @property
    def column_shape(self) -> tuple[int, int]:
        """Two lengths that the column index runs over, outer one first."""
        _, _, T, W = self.sizes
        return (W, T) if self.column_swapped else (T, W)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers held."""
        return self.row.nbytes + self.column.nbytes + self.matrices.nbytes

    def sum_bytes(self, other: KroneckerTerm) -> int:
        """Bound the bytes of the added matrices of two terms of one shape."""
        both = self.matrices.nbytes + other.matrices.nbytes
        _, R, _, W = self.sizes
        count = max(len(self.matrices.right), len(other.matrices.right))
        dense = count * R * W * self.row.element_size()
        thin = self.matrices.left is not None and other.matrices.left is not None
        return both if thin else dense

    @property
    def work(self) -> int:
        """Multiplications that assembling the term takes, symmetries aside."""
        _, R, _, W = self.sizes
        rows, columns = self.places()
        return self.tokens * int(rows.sum()) * int(columns.sum()) * R * W

    def places(self) -> tuple[Bool[Tensor, " P"], Bool[Tensor, " T"]]:
        """Find the entries of row and column vectors that are not zero for every token."""
        return (self.row != 0).any(0), (self.column != 0).any(0)

    def adjoint(self) -> KroneckerTerm:
        """Transpose the term."""
        return KroneckerTerm(
            row=self.column,
            column=self.row,
            matrices=self.matrices.transposed(),
            row_swapped=self.column_swapped,
            column_swapped=self.row_swapped,
        )

    def select(self, tokens: slice) -> KroneckerTerm:
        """Sum over some of the tokens only."""
        row = self.row[tokens]
        column = row if self.column is self.row else self.column[tokens]
        return replace(self, row=row, column=column, matrices=self.matrices.select(tokens))

    def narrow_rows(self, rows: slice) -> KroneckerTerm:
        """Take a range of the outer row index: some rows of the operator."""
        if self.row_swapped:
            return replace(self, matrices=self.matrices.narrow_rows(rows))
        return replace(self, row=self.row[:, rows])

    def collapsed(self) -> KroneckerTerm:
        """Shorten the sum where the tokens share one matrix, or where P = T = 1.

        Where the tokens share one matrix, Σ_n row_n column_nᵀ is formed once and its rows stand in
        for the tokens. Where P = T = 1, the matrices are added up, unless thin products of them
        hold fewer numbers than the sum.

        Returns:
            The shorter term, or this one where it has no more tokens than row entries.
        """
        P, R, T, W = self.sizes
        if P == T == 1 and self.tokens > 1 and not self.matrices.shared:
            thin = self.matrices.left is not None
            if thin and self.tokens * self.matrices.rank * (R + W) < R * W:
                return self
            ones = self.row.new_ones(1, 1)
            summed = self.matrices.summed((self.row * self.column)[:, 0])
            return replace(self, row=ones, column=ones, matrices=summed)
        if not self.matrices.shared or self.tokens <= P:
            return self
        identity = torch.eye(P, dtype=self.row.dtype, device=self.row.device)
        return replace(self, row=identity, column=self.row.T @ self.column)

    def product(self, columns: Float[Tensor, "column_size K"]) -> Float[Tensor, "row_size K"]:
        """Multiply (T·W, K) columns by the term, as (P·R, K). Cost: N (T W + R W + P R) K."""
        P, R, T, W = self.sizes
        count = columns.shape[1]
        block = columns.reshape(*self.column_shape, count)
        if self.column_swapped:
            block = block.transpose(0, 1)
        inner = (self.column @ block.reshape(T, W * count)).view(-1, W, count)
        inner = self.matrices.times(inner)
        out = (self.row.T @ inner.reshape(-1, R * count)).view(P, R, count)
        if self.row_swapped:
            out = out.transpose(0, 1)
        return out.reshape(P * R, count)

    def assembled(self) -> Float[Tensor, "outer_row inner_row outer_column inner_column"]:
        """Assemble every entry, (row outer, row inner, column outer, column inner).

        Returns:
            The entries; reshaped to two axes they are the matrix.

        Cost: N P T R W multiplications; half as many for each symmetric factor. Entries at which
            all vectors are zero cost nothing.
        """
        P, R, T, W = self.sizes
        row_order = (2, 0) if self.row_swapped else (0, 2)
        column_order = (3, 1) if self.column_swapped else (1, 3)
        rows, columns = self.places()
        # zeros are cheaper to copy around than to multiply, from half of them on
        if 2 * int(rows.sum()) <= P or 2 * int(columns.sum()) <= T:
            row = self.row[:, rows]
            column = row if self.column is self.row else self.column[:, columns]
            met = replace(self, row=row, column=column)
            grid = self.row.new_zeros(P, T, R, W)
            if not rows.any() or not columns.any():
                return grid.permute(*row_order, *column_order)
            there = torch.meshgrid(rows.nonzero()[:, 0], columns.nonzero()[:, 0], indexing="ij")
            grid[there] = met._canonical().view(row.shape[1], column.shape[1], R, W)
        else:
            grid = self._canonical().view(P, T, R, W)
        return grid.permute(*row_order, *column_order)

    def _canonical(self) -> Tensor:
        """Sum (row columnᵀ, flat) (matrix, flat)ᵀ over the tokens, (P·T, R·W)."""
        P, R, T, _ = self.sizes
        entries = self.matrices.whole().flatten(1)
        if self.matrices.shared:
            return (self.row.T @ self.column).view(P * T, 1) * entries
        if self.matrices.symmetric:
            entries = entries.index_select(1, upper_triangle(R, entries.device).places)
        if self.row is not self.column:
            pairs = (self.row[:, :, None] * self.column[:, None, :]).view(-1, P * T)
            summed = pairs.T @ entries
        else:
            upper = upper_triangle(P, entries.device)
            pairs = self.row.index_select(1, upper.rows) * self.row.index_select(1, upper.columns)
            summed = (pairs.T @ entries).index_select(0, upper.numbers)
        if self.matrices.symmetric:
            summed = summed.index_select(1, upper_triangle(R, entries.device).numbers)
        return summed

    def diagonal(self) -> Float[Tensor, " size"]:
        """Compute the diagonal of a square term, (P·R,)."""
        if self.row_swapped == self.column_swapped:
            diagonals = self.matrices.diagonals().expand(self.tokens, -1)
            out = (self.row * self.column).T @ diagonals
        else:
            entries = self.matrices.whole()
            out = torch.einsum("nrp,np,nr->pr", entries, self.row, self.column)
        return (out.T if self.row_swapped else out).reshape(-1)


def distinct(term: KroneckerTerm) -> KroneckerTerm:
    """Merge tokens with equal pairs of vectors, where at least half of the products are spared.

    Returns:
        The term with merged tokens, or the given one where merging does not pay.

    Cost: one pass over the vectors to find equal ones; N R W additions where they are merged.
    """
    if term.tokens < FEWEST or term.matrices.shared or _too_wide(term.matrices):
        return term
    if (equal := _equal_tokens(term)) is None:
        return term
    first, group = equal
    summed = _summed(term.matrices, group, len(first))
    row = term.row[first]
    return replace(
        term,
        row=row,
        column=row if term.column is term.row else term.column[first],
        matrices=TokenMatrices(right=summed, symmetric=term.matrices.symmetric),
    )


def _summed(matrices: TokenMatrices, group: Tensor, groups: int) -> Tensor:
    """Sum D_n over each group, (U, R, W); thin products are summed as they are multiplied out."""
    R, W = matrices.rows, matrices.columns
    left, right = matrices.left, matrices.right
    if left is None or left.shape[0] != right.shape[0]:
        summed = right.new_zeros(groups, R, W)
        for tokens in chunks(len(group), max(1, TOGETHER // (R * W))):
            summed.index_add_(0, group[tokens], matrices.select(tokens).whole())
        return summed
    order = torch.argsort(group)
    same = left is right
    right = right.index_select(0, order).flatten(0, 1)
    left = right if same else left.index_select(0, order).flatten(0, 1)
    summed = right.new_empty(groups, R, W)
    counts = torch.bincount(group, minlength=groups) * matrices.rank
    for rows, total in zip(slices(counts.tolist()), summed, strict=True):
        torch.mm(left[rows].T, right[rows], out=total)
    return summed


def _too_wide(matrices: TokenMatrices) -> bool:
    thin = matrices.rank * (matrices.rows + matrices.columns)
    return matrices.left is not None and matrices.rows * matrices.columns > WIDEST * thin


def _equal_tokens(term: KroneckerTerm) -> tuple[Tensor, Tensor] | None:
    """Find the first token of each group of equal ones (U,) and each token's group (N,).

    Returns:
        Both; None where fewer than half of the tokens would be spared.
    """
    prints = _fingerprints(term.row)
    if term.column is not term.row:
        # a factor, so that the pairs (a, b) and (b, a) differ
        prints = prints + torch.pi * _fingerprints(term.column)
    values, group = torch.unique(prints, return_inverse=True)
    if 2 * len(values) > term.tokens:
        return None
    first = torch.empty_like(values, dtype=torch.long)
    first[group.flip(0)] = torch.arange(term.tokens - 1, -1, -1, device=first.device)
    representative = first[group]  # fingerprints may agree by chance: the vectors decide
    same = torch.equal(term.row, term.row[representative])
    if same and term.column is not term.row:
        same = torch.equal(term.column, term.column[representative])
    return (first, group) if same else None


def _fingerprints(vectors: Tensor) -> Tensor:
    """Hash each vector to one number.

    Equal vectors share it. Others hardly ever do; the caller compares the vectors themselves.

    Returns:
        One float64 number per vector.
    """
    generic = torch.arange(1, vectors.shape[1] + 1, device=vectors.device).double().sqrt().sin()
    return (vectors.double() * generic).sum(1)
