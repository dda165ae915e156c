"""Inner products of Kronecker sums, by Gram matrices over their tokens.

⟨Σ_n a_n b_nᵀ ⊗ D_n, Σ_m a_m b_mᵀ ⊗ D_m⟩ = Σ_nm (a_n·a_m)(b_n·b_m)⟨D_n, D_m⟩: three N × M matrices
in place of one with P·T·R·W entries.

Letters: N tokens (1 where all share a matrix); P and T, lengths of the row and the column
vectors; R and W, rows and columns of the matrices; C, inner size of a thin product; M tokens of the
second sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hessblocks.linalg.kronecker.matrices import TokenMatrices
from hessblocks.linalg.kronecker.terms import KroneckerTerm
from hessblocks.linalg.operators import BoundedCache, chunks, largest_size


def inner_product(
    first: KroneckerTerm, second: KroneckerTerm, *, memory_limit: int, unit: float = 1.0
) -> float:
    """Compute the Frobenius inner product of two terms of one shape.

    Args:
        first: a term.
        second: another, or the same one (then half of the pairs of tokens are visited).
        memory_limit: bytes that the Gram matrices and the matrices of a chunk may take.
        unit: size of the terms; the inner product is that of both over it.

    Returns:
        The inner product; chunks are scaled first, so that float32 neither under- nor overflows.

    Cost: `inner_product_cost`.
    """
    step = _chunk_length(first, second, memory_limit)
    prepared: BoundedCache[_Chunk] = BoundedCache(memory_limit // 2)

    def chunk(term: KroneckerTerm, other: KroneckerTerm, tokens: slice) -> _Chunk:
        key = (term is first, tokens.start)
        return prepared.get(key, lambda: _Chunk.of(term.select(tokens), other))

    total = 0.0
    for rows in chunks(first.tokens, step):
        left = chunk(first, second, rows)
        for columns in chunks(second.tokens, step):
            if first is second and columns.start < rows.start:
                continue
            weight = 2.0 if first is second and columns.start > rows.start else 1.0
            right = chunk(second, first, columns)
            sizes = (left.size / unit) * (right.size / unit)
            total += weight * sizes * _pairs(left.term, right.term)
    return total


def inner_product_cost(first: KroneckerTerm, second: KroneckerTerm) -> int:
    """Count the multiplications of `inner_product`: N M (P + T + the smaller way for D)."""
    P, R, T, W = first.sizes
    pairs = first.tokens * second.tokens
    if aligned(first, second):
        return pairs * (P + T + min(R * W, _thin_cost(first.matrices, second.matrices)))
    return pairs * (P + T + R * W + second.matrices.rows * second.matrices.columns)


def _chunk_length(first: KroneckerTerm, second: KroneckerTerm, memory_limit: int) -> int:
    """Choose the tokens of a chunk: two chunks' matrices and Gram tensors stay in the limit.

    A term with itself is cut at least in three, so that half of the pairs of chunks can be left
    out.

    Returns:
        Tokens, at least one.
    """
    numbers = memory_limit // first.row.element_size()
    _, R, _, W = first.sizes
    matrix, gram = 0, 3
    if not aligned(first, second):
        gram = 3 * max(R, W, second.matrices.rows, second.matrices.columns)
    elif _thin(first.matrices, second.matrices):
        gram = 3 + 2 * first.matrices.rank * second.matrices.rank
    else:
        matrix = R * W
    by_matrices = numbers // (4 * matrix) if matrix else numbers
    by_symmetry = max(64, first.tokens // 6) if first is second else first.tokens
    return max(1, min(by_matrices, int((numbers / (2 * gram)) ** 0.5), by_symmetry))


def aligned(first: KroneckerTerm, second: KroneckerTerm) -> bool:
    """Tell whether the vectors of both terms belong to the same indices."""
    return first.row_swapped == second.row_swapped and first.column_swapped == second.column_swapped


def _thin_cost(first: TokenMatrices, second: TokenMatrices) -> int:
    return first.rank * second.rank * (first.rows + first.columns)


def _thin(first: TokenMatrices, second: TokenMatrices) -> bool:
    """Tell whether thin products are compared without being multiplied out."""
    both = first.left is not None and second.left is not None
    return both and _thin_cost(first, second) < first.rows * first.columns


_SAFE = 1e4
"""A largest entry within this factor of 1 needs no scaling: an inner product of thin matrices
multiplies four such entries, 1e-16 to 1e16."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Chunk:
    """Some tokens of a term, ready to be compared with another term."""

    term: KroneckerTerm
    """Scaled term: vectors with entries up to 1, matrices with entries not far from 1."""
    size: float
    """Divisor that the term was scaled by."""

    @property
    def nbytes(self) -> int:
        return self.term.nbytes

    @classmethod
    def of(cls, term: KroneckerTerm, other: KroneckerTerm) -> _Chunk:
        """Multiply out, pack and scale a term for its inner product with `other`."""
        matrices, packed = term.matrices, False
        if aligned(term, other) and not _thin(matrices, other.matrices):
            # packed ones are a copy, which may be scaled in place
            packed = matrices.symmetric and other.matrices.symmetric
            matrices = matrices.packed() if packed else TokenMatrices(right=matrices.whole())
        row, row_size = column, column_size = _normalised(term.row, within=1.0)
        if term.column is not term.row:
            column, column_size = _normalised(term.column, within=1.0)
        right, size = _normalised(matrices.right, within=_SAFE, in_place=packed)
        left = matrices.left
        if left is not None:
            same = left is matrices.right
            left, left_size = (right, size) if same else _normalised(left, within=_SAFE)
            size = size * left_size
        scaled = TokenMatrices(right=right, left=left)
        term = replace(term, row=row, column=column, matrices=scaled)
        return cls(term=term, size=row_size * column_size * size)


def _normalised(tensor: Tensor, *, within: float, in_place: bool = False) -> tuple[Tensor, float]:
    """Divide a tensor by its largest entry, unless that is close enough to 1; return both.

    Args:
        tensor: any tensor.
        within: largest factor between the largest entry and 1 without a division.
        in_place: whether `tensor` may be changed in place.

    Returns:
        The scaled tensor and the divisor, 1 if the tensor is unchanged.
    """
    size = largest_size(tensor) or 1.0
    if 1 / within <= size <= within:
        return tensor, 1.0
    return tensor.div_(size) if in_place else tensor / size, size


def _pairs(first: KroneckerTerm, second: KroneckerTerm) -> float:
    """Compute the inner product of two chunks.

    If the row (column) vectors of both belong to the same index, their dot products are factors.
    Otherwise each vector is multiplied with the other term's matrix.

    Returns:
        The inner product, of the scaled terms.
    """
    rows_meet = first.row_swapped == second.row_swapped
    if first.column_swapped == second.column_swapped and not rows_meet:
        return _pairs(first.adjoint(), second.adjoint())
    if aligned(first, second):
        gram = _matrix_gram(first.matrices, second.matrices)
        vectors = first.row @ second.row.T
        if first.column is first.row and second.column is second.row:
            gram = gram * vectors.square()
        else:
            gram = gram * vectors * (first.column @ second.column.T)
    elif rows_meet:
        forth = first.matrices.times(second.column.T)  # (N, R, M)
        back = second.matrices.times(first.column.T)  # (M, R, N)
        gram = (first.row @ second.row.T) * (forth * back.permute(2, 1, 0)).sum(1)
    else:
        forth = torch.einsum("nrm,mr->nm", first.matrices.times(second.column.T), second.row)
        back = torch.einsum("mpn,np->nm", second.matrices.times(first.column.T), first.row)
        gram = forth * back
    # a matrix shared by all tokens left an axis of length 1
    return float(gram.expand(first.tokens, second.tokens).sum(dtype=torch.float64))


def _matrix_gram(first: TokenMatrices, second: TokenMatrices) -> Tensor:
    """Compute ⟨D_n, D_m⟩ for all pairs, (N | 1, M | 1)."""
    if first.left is None or second.left is None:
        return first.whole().flatten(1) @ second.whole().flatten(1).T
    lefts: Tensor = torch.tensordot(first.left, second.left, dims=([2], [2]))  # (N, C, M, C')
    if first.left is first.right and second.left is second.right:
        return lefts.square().sum((1, 3))
    rights: Tensor = torch.tensordot(first.right, second.right, dims=([2], [2]))
    return (lefts * rights).sum((1, 3))
