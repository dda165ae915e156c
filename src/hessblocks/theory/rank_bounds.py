"""Rank bounds of a block, from its Kronecker factors, without assembling it.

A block is a sum over tokens of (row vector)(column vector)ᵀ ⊗ D_n. So its rank is at most each of

    dim span(row vectors) · dim span(column spaces of all D_n),
    dim span(column vectors) · dim span(row spaces of all D_n),
    Σ_n rank D_n.

Where all tokens share D it is exactly rank(Σ_n row columnᵀ) · rank D. The bounds of several pieces
(heads) add up. H_o = JᵀΛJ has a rank of at most Σ_n rank Λ_n besides.

Letters: N tokens, R and W rows and columns of a matrix, P and T lengths of the vectors.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import Part
from hessblocks.linalg import KroneckerSum, KroneckerTerm
from hessblocks.theory.hessian import AttentionHessian
from hessblocks.theory.piecewise import Piece

SPLIT: tuple[Part, ...] = ("outer", "functional")
TermSequence = Sequence[KroneckerTerm]


def rank_bound(
    hessian: AttentionHessian, row: str, column: str, part: Part = "full", head: int | None = None
) -> int:
    """Bound the rank of a block from above.

    With one head, the value block of H_o under squared loss and the block of query and key in H_f
    with linear scores have exactly this rank.

    Args:
        hessian: Hessian of the layer.
        row: name of the row group.
        column: name of the column group.
        part: outer (H_o), functional (H_f) or full (their sum).
        head: one head in both groups, or None for all heads.

    Returns:
        The bound. Singular values below 2e-12 (float64) or 6e-6 (float32) of the largest count as
        0. The latter is too coarse for many blocks; use float64.

    Raises:
        ArgumentError: an unknown group, part or head.

    Cost: decompositions of (N, P), (N·W, R), (N·R, W) and N (R, W) matrices.

    Source: docs/theory.md; Lemma D.2 of Ormaniec et al. 2025 is about the same ranks.
    """
    block = hessian.block(row, column, part, head)
    pieces = hessian.pieces(row, head), hessian.pieces(column, head)
    if part != "full":
        return min(*block.shape, *_bounds(hessian, *pieces, (part,)))
    apart = [min(_bounds(hessian, *pieces, (single,))) for single in SPLIT]
    return min(*block.shape, sum(apart), *_bounds(hessian, *pieces, SPLIT))


def _bounds(
    hessian: AttentionHessian, rows: list[Piece], columns: list[Piece], parts: Sequence[Part]
) -> list[int]:
    """Bound by the spaces of rows, by those of columns, by tokens, by the loss (H_o alone)."""

    def cell(row: Piece, column: Piece) -> TermSequence:
        terms = [term for part in parts for term in hessian.terms(row, column, part)]
        return KroneckerSum(
            terms, row_shape=row.shape, column_shape=column.shape, like=hessian.layer.x
        ).terms

    cells = [[cell(row, column) for column in columns] for row in rows]
    bounds = [
        sum(_rows([term for terms in line for term in terms]) for line in cells),
        sum(
            _rows([term.adjoint() for terms in line for term in terms])
            for line in zip(*cells, strict=True)
        ),
        sum(_of_tokens(term) for line in cells for terms in line for term in terms),
    ]
    if parts == ("outer",):
        curvature = hessian.curvature
        tokens = len(hessian.heads[0].x_query) if curvature.shared else 1
        bounds.append(tokens * _ranks(curvature.numbers))
    return bounds


def _rows(terms: TermSequence) -> int:
    """Multiply the dimensions of two spaces, of outer and inner row index, that hold all rows."""
    if not terms:
        return 0
    spans = [_spans(term)[:: -1 if term.row_swapped else 1] for term in terms]
    return math.prod(_ranks(torch.cat(vectors)[None]) for vectors in zip(*spans, strict=True))


def _spans(term: KroneckerTerm) -> tuple[Float[Tensor, "vectors P"], Float[Tensor, "others R"]]:
    """Find vectors spanning the row vectors, others spanning the column spaces of all matrices."""
    matrices = term.matrices
    of_matrices = matrices.right.mT if matrices.left is None else matrices.left
    vectors = term.column.T @ term.row if matrices.shared else term.row
    return vectors, of_matrices.flatten(0, 1)


def _of_tokens(term: KroneckerTerm) -> int:
    """Sum the ranks of all D_n, or take the one rank where all tokens share D."""
    if term.matrices.shared:
        return _ranks((term.row.T @ term.column)[None]) * _ranks(term.matrices.whole())
    left, right = term.matrices.left, term.matrices.right
    return _ranks(right) if left is None else min(_ranks(left), _ranks(right))


def _ranks(matrices: Float[Tensor, "N rows columns"]) -> int:
    """Sum the ranks; singular values that are small beside the largest of all count as 0."""
    values = torch.linalg.svdvals(matrices)
    if not values.numel():
        return 0
    return int((values > torch.finfo(values.dtype).eps ** 0.75 * values.max()).sum())
