"""Piecewise Hessian: blocks between groups of parameters, as operators that are not assembled.

Letters: P all parameters.
"""

import abc
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import PARTS, Part
from hessblocks.errors import ArgumentError, check_name
from hessblocks.linalg import BlockGrid, BoundedCache, ExactOperator, KroneckerSum, KroneckerTerm

Terms = list[KroneckerTerm]
GAINS = ("alpha", "beta", "gamma")
NORMS = ("query_norm", "key_norm")
GROUPS = ("query", "query_key", "key", "value", "projection", *NORMS, *GAINS)
"""Every group that a layer can have, in the order of the whole matrix."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Piece of a parameter group: the part of one head, or of heads that share it."""

    group: str
    """One of `GROUPS`, or a group after the attention."""
    heads: tuple[int, ...]
    """Heads that use the piece: several if they share it or are joined; none for the projection's
    bias and for groups after the attention."""
    shape: tuple[int, int]
    """(in, out) of the weight; (1, 1) for a gain."""

    @property
    def length(self) -> int:
        """Number of parameters."""
        return self.shape[0] * self.shape[1]


class PiecewiseHessian(abc.ABC):
    """Hessian H = H_o + H_f in blocks between groups, each group one or several pieces.

    A subclass gives the Kronecker terms of two pieces.
    """

    groups: tuple[str, ...]
    """Names of the groups, in the order of the whole matrix."""

    def __init__(self, like: Float[Tensor, "..."], memory_limit: int) -> None:
        """Start without any block.

        Args:
            like: a tensor with the dtype and device of the blocks.
            memory_limit: bytes that one operation may take; up to a quarter is for cached blocks.
        """
        self._like = torch.empty(0, dtype=like.dtype, device=like.device)
        self._limit = memory_limit
        self._norms: dict[tuple[Piece, Piece, Part], float] = {}
        self._blocks: BoundedCache[Any] = BoundedCache(memory_limit // 4)

    def __repr__(self) -> str:
        """Print kind and groups, on one line."""
        dtype = str(self._like.dtype).removeprefix("torch.")
        return (
            f"{type(self).__name__}(exact, {dtype}, {self._like.device}, groups "
            f"{', '.join(self.groups)})"
        )

    @abc.abstractmethod
    def pieces(self, group: str, head: int | None) -> list[Piece]:
        """List the pieces of a group in the order in which it is flattened, or one head's."""

    @abc.abstractmethod
    def terms(self, row: Piece, column: Piece, part: Part) -> Terms:
        """Collect the terms of H_o (outer) or H_f (functional) between two pieces."""

    @abc.abstractmethod
    def semidefinite(self, part: Part) -> bool:
        """Tell whether no eigenvalue of that part of the whole is negative."""

    def block(
        self, row: str, column: str, part: Part = "full", head: int | tuple[int, int] | None = None
    ) -> ExactOperator:
        """Return the Hessian block of two groups, ∂²ℓ/∂(row)∂(column).

        Args:
            row: a name in `groups`.
            column: a name in `groups`.
            part: outer (H_o), functional (H_f) or full (their sum).
            head: one head in both groups, a pair (row head, column head), or None for all heads.

        Returns:
            An operator of shape (parameters of row, parameters of column).

        Raises:
            ArgumentError: an unknown group, part or head.
        """
        check_name("part", part, PARTS)
        self._check_groups(row, column)
        heads = _pair(head)
        rows, columns = self.pieces(row, heads[0]), self.pieces(column, heads[1])
        if len(rows) == len(columns) == 1:
            return self._piece_block(rows[0], columns[0], part)
        return self._grid(rows, columns, part)

    def _check_groups(self, *names: str) -> None:
        if not self.groups:
            raise ArgumentError(
                "groups: none of these weights is trained, so that there is no block; unfreeze "
                "them by requires_grad_(True)"
            )
        for name in names:
            check_name("group", name, self.groups)

    def whole(self, part: Part = "full") -> ExactOperator:
        """Return the Hessian of all groups together, in the order of `groups`."""
        check_name("part", part, PARTS)
        self._check_groups()
        pieces = [piece for group in self.groups for piece in self.pieces(group, None)]
        return self._grid(pieces, pieces, part)

    def dense(self, part: Part = "full") -> Float[Tensor, "P P"]:
        """Assemble the whole matrix; groups in the order of `groups`.

        Returns:
            The matrix, in the dtype of the input.

        Raises:
            ArgumentError: an unknown part.
        """
        return self.whole(part).dense()

    def norms(self, head: int | None = None) -> dict[tuple[str, str, Part], float]:
        """Compute exact Frobenius norms of every block and part.

        Args:
            head: one head, or None for all heads together.

        Returns:
            {(row, column, part): norm}; blocks below the diagonal repeat those above.
        """
        out: dict[tuple[str, str, Part], float] = {}
        pairs = combinations_with_replacement(self.groups, 2)
        for (row, column), part in product(pairs, PARTS):
            norm = self.block(row, column, part, head).frobenius_norm()
            out[row, column, part] = out[column, row, part] = norm
        return out

    def _grid(self, rows: list[Piece], columns: list[Piece], part: Part) -> BlockGrid:
        self._check_autocast()
        symmetric = rows == columns
        return BlockGrid(
            lambda i, j: self._piece_block(rows[i], columns[j], part),
            row_lengths=[piece.length for piece in rows],
            column_lengths=[piece.length for piece in columns],
            like=self._like,
            norm=lambda i, j: self._piece_norm(rows[i], columns[j], part),
            symmetric=symmetric,
            positive_semidefinite=symmetric and self.semidefinite(part),
        )

    def _piece_block(self, row: Piece, column: Piece, part: Part) -> ExactOperator:
        self._check_autocast()
        key = (row, column, part)
        block: ExactOperator = self._blocks.get(key, lambda: self._made(*key))
        return block

    def _check_autocast(self) -> None:
        if torch.is_autocast_enabled(self._like.device.type):
            raise ArgumentError(
                "autocast: it would round an exact block to half precision; ask for the block "
                "outside of it"
            )

    def _piece_norm(self, row: Piece, column: Piece, part: Part) -> float:
        """Return the norm of a block; norms stay cached after the block is freed."""
        if part == "full":
            functional = self._piece_block(row, column, "functional")
            if isinstance(functional, KroneckerSum) and not functional.terms:
                part = "outer"  # H_f is 0, so that this is the same block
        key = (row, column, part)
        if key not in self._norms:
            self._norms[key] = self._piece_block(row, column, part).frobenius_norm()
        return self._norms[key]

    def _made(self, row: Piece, column: Piece, part: Part) -> ExactOperator:
        """Build one part, or H_o + H_f; H_o itself where H_f is zero."""
        if part == "full":
            outer = self._piece_block(row, column, "outer")
            functional = self._piece_block(row, column, "functional")
            assert isinstance(outer, KroneckerSum)
            assert isinstance(functional, KroneckerSum)
            if not functional.terms:
                return outer
            # as one sum, whose terms with equal vectors are merged
            terms = [*outer.terms, *functional.terms]
        else:
            terms = self.terms(row, column, part)
        return self._sum(terms, row, column, part)

    def _sum(self, terms: Terms, row: Piece, column: Piece, part: Part) -> KroneckerSum:
        return KroneckerSum(
            terms,
            row_shape=row.shape,
            column_shape=column.shape,
            like=self._like,
            symmetric=row == column,
            positive_semidefinite=row == column and self.semidefinite(part),
            memory_limit=self._limit,
        )


def _pair(head: int | tuple[int, int] | None) -> tuple[int | None, int | None]:
    """Read the heads of the rows and of the columns."""
    heads = head if isinstance(head, tuple) else (head, head)
    integers = all(h is None or (isinstance(h, int) and not isinstance(h, bool)) for h in heads)
    if len(heads) != 2 or not integers:
        raise ArgumentError(f"head: expected a number, a pair of numbers or None, got {head!r}")
    return heads
