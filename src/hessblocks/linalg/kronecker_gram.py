"""Inner products of sums of Kronecker products, by Gram matrices over their tokens.

⟨Σ_n a_n b_nᵀ ⊗ D_n, Σ_m a_m b_mᵀ ⊗ D_m⟩ = Σ_nm (a_n·a_m)(b_n·b_m)⟨D_n, D_m⟩: three N × M matrices
in place of one with P·T·R·W entries. Letters as in `kronecker_terms`; M tokens of the second sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hessblocks.linalg.kronecker_terms import KroneckerTerm, TokenMatrices


def inner_product(first: KroneckerTerm, second: KroneckerTerm, *, memory_limit: int) -> float:
    """Frobenius inner product of two terms of one shape.

    Args:
        first: a term.
        second: another, or the same one (then half of the pairs of tokens are visited).
        memory_limit: bytes that the Gram matrices and the matrices of a chunk may take.

    Returns:
        The inner product; each chunk is brought to unit size first, so that float32 does not underflow.

    Cost: `inner_product_cost`.
    """
    step = _chunk_length(first, second, memory_limit)
    total = 0.0
    for rows in chunks(first.tokens, step):
        scale, left = _unit(first.select(rows), second)
        for columns in chunks(second.tokens, step):
            if first is second and columns.start < rows.start:
                continue
            if first is second and columns == rows:
                total += scale**2 * _pairs(left, left)
                continue
            other_scale, right = _unit(second.select(columns), first)
            weight = 2.0 if first is second else 1.0
            total += weight * scale * other_scale * _pairs(left, right)
    return total


def inner_product_cost(first: KroneckerTerm, second: KroneckerTerm) -> int:
    """Multiplications that `inner_product` takes: N M (P + T + the smaller way to compare D)."""
    P, R, T, W = first.sizes
    pairs = first.tokens * second.tokens
    if _aligned(first, second):
        return pairs * (P + T + min(R * W, _thin_cost(first.matrices, second.matrices)))
    return pairs * (P + T + R * W + second.matrices.rows * second.matrices.columns)


def chunks(length: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover range(length)."""
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def _chunk_length(first: KroneckerTerm, second: KroneckerTerm, memory_limit: int) -> int:
    """Tokens in a chunk: two chunks of matrices and the Gram tensors of a pair stay in the limit."""
    numbers = memory_limit // first.row.element_size()
    _, R, _, W = first.sizes
    if _aligned(first, second):
        matrix, gram = R * W, 3
        if _thin(first.matrices, second.matrices):
            matrix, gram = 0, 3 + 2 * first.matrices.rank * second.matrices.rank
    else:
        matrix, gram = 0, 3 * max(R, W, second.matrices.rows, second.matrices.columns)
    by_matrices = numbers // (4 * matrix) if matrix else numbers
    return max(1, min(by_matrices, int((numbers / (2 * gram)) ** 0.5), 2048))


def _aligned(first: KroneckerTerm, second: KroneckerTerm) -> bool:
    return first.row_swapped == second.row_swapped and first.column_swapped == second.column_swapped


def _thin_cost(first: TokenMatrices, second: TokenMatrices) -> int:
    return first.rank * second.rank * (first.rows + first.columns)


def _thin(first: TokenMatrices, second: TokenMatrices) -> bool:
    """Whether thin products are compared without being multiplied out."""
    both = first.left is not None and second.left is not None
    return both and _thin_cost(first, second) < first.rows * first.columns


def _unit(term: KroneckerTerm, other: KroneckerTerm) -> tuple[float, KroneckerTerm]:
    """The chunk with entries of at most 1, and the number it was divided by."""
    matrices = term.matrices
    if _aligned(term, other) and not _thin(matrices, other.matrices):
        matrices = TokenMatrices(right=matrices.whole())
    row, row_size = _normalised(term.row)
    column, column_size = (row, row_size) if term.column is term.row else _normalised(term.column)
    right, size = _normalised(matrices.right)
    left = matrices.left
    if left is not None:
        left, left_size = (right, size) if left is matrices.right else _normalised(left)
        size = size * left_size
    unit = replace(term, row=row, column=column, matrices=TokenMatrices(right=right, left=left))
    return row_size * column_size * size, unit


def _normalised(tensor: Tensor) -> tuple[Tensor, float]:
    """The tensor over its largest entry, and that entry (1 for zeros)."""
    size = float(tensor.abs().amax()) or 1.0
    return tensor / size, size


def _pairs(first: KroneckerTerm, second: KroneckerTerm) -> float:
    """The inner product of two chunks.

    Two terms whose row (column) vectors stand on the same index meet in their dot products;
    otherwise the vector of each runs through the matrix of the other.
    """
    rows_meet = first.row_swapped == second.row_swapped
    columns_meet = first.column_swapped == second.column_swapped
    if columns_meet and not rows_meet:
        return _pairs(first.adjoint(), second.adjoint())
    if rows_meet and columns_meet:
        gram = _matrix_gram(first.matrices, second.matrices)
        gram = gram * (first.row @ second.row.T) * (first.column @ second.column.T)
    elif rows_meet:
        forth = first.matrices.times_each(second.column)  # (N, R, M)
        back = second.matrices.times_each(first.column)  # (M, R, N)
        gram = (first.row @ second.row.T) * (forth * back.permute(2, 1, 0)).sum(1)
    else:
        forth = torch.einsum("nrm,mr->nm", first.matrices.times_each(second.column), second.row)
        back = torch.einsum("mpn,np->nm", second.matrices.times_each(first.column), first.row)
        gram = forth * back
    return float(_expanded_sum(gram, first.tokens, second.tokens))


def _expanded_sum(gram: Tensor, rows: int, columns: int) -> Tensor:
    """The sum over all pairs, where a matrix shared by all tokens left an axis of length 1."""
    return gram.expand(rows, columns).sum(dtype=torch.float64)


def _matrix_gram(first: TokenMatrices, second: TokenMatrices) -> Tensor:
    """⟨D_n, D_m⟩ for all pairs, (N | 1, M | 1)."""
    if first.left is None or second.left is None:
        return first.whole().flatten(1) @ second.whole().flatten(1).T
    lefts = _cross(first.left, second.left)
    if first.left is first.right and second.left is second.right:
        return lefts.square().sum((1, 3))
    return (lefts * _cross(first.right, second.right)).sum((1, 3))


def _cross(first: Tensor, second: Tensor) -> Tensor:
    """All products of thin factors, (N, C, M, C')."""
    flat = first.flatten(0, 1) @ second.flatten(0, 1).T
    return flat.view(first.shape[0], first.shape[1], second.shape[0], second.shape[1])
