"""Merge tokens of a Kronecker sum that carry the same vectors: their matrices are added up.

In the first layer of a language model equal tokens at equal positions have equal inputs. A batch of
many sequences may then have few distinct ones.

Letters: N tokens; R and W, rows and columns of the matrices; U distinct pairs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hessblocks.linalg.kronecker.matrices import TokenMatrices
from hessblocks.linalg.kronecker.terms import KroneckerTerm
from hessblocks.linalg.operators import chunks

FEWEST = 64
"""Tokens below which looking for equal ones does not pay."""
WIDEST = 8
"""Most numbers of a whole matrix, in those of its thin product, for which it is multiplied out."""
TOGETHER = 1 << 20
"""Numbers of whole matrices that are held at a time."""


def distinct(term: KroneckerTerm) -> KroneckerTerm:
    """Merge tokens with equal pairs of vectors, where at least half of the products are spared.

    Returns:
        The term with merged tokens, or the given one where merging does not pay.

    Cost: one pass over the vectors to find equal ones; N R W additions where they are merged.
    """
    if term.tokens < FEWEST or term.matrices.shared or _too_wide(term.matrices):
        return term
    if (found := _equal_tokens(term)) is None:
        return term
    first, group = found
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
    start = 0
    for number, count in enumerate(torch.bincount(group, minlength=groups).tolist()):
        end = start + count * matrices.rank
        torch.mm(left[start:end].T, right[start:end], out=summed[number])
        start = end
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
        One float64 number a vector.
    """
    generic = torch.arange(1, vectors.shape[1] + 1, device=vectors.device).double().sqrt().sin()
    return (vectors.double() * generic).sum(1)
