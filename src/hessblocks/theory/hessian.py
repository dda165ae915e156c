"""The Hessian of a loss in the weights of one self-attention layer, in closed form.

Letters: B sequences, L tokens, D width, H heads, K query-key width, V value width, O output width,
C rank of a curvature factor, N = B·L, P all parameters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import combinations_with_replacement, product

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import PARTS, Part
from hessblocks.errors import ArgumentError, check_name
from hessblocks.linalg import BlockGrid, BoundedCache, ExactOperator, KroneckerSum, KroneckerTerm
from hessblocks.theory.assembly import assembled_through_product, pays_off
from hessblocks.theory.functional import functional_terms
from hessblocks.theory.head_tokens import HeadTokens
from hessblocks.theory.layer import AttentionLayer
from hessblocks.theory.moments import AttentionMoments
from hessblocks.theory.outer import OuterPart
from hessblocks.theory.pieces import GROUPS, Piece
from hessblocks.theory.token_curvature import TokenCurvature


class AttentionHessian:
    """Every block of H = H_o + H_f of one attention layer, as operators that are never assembled.

    Groups are flattened head by head, each head's weight row by row; `groups` gives their order.
    """

    def __init__(
        self,
        layer: AttentionLayer,
        *,
        gradient: Float[Tensor, "B L O"],
        curvature: TokenCurvature,
        functional_curvature: TokenCurvature | None = None,
    ) -> None:
        """Combine a layer with what the loss sees of it. No block is computed yet.

        Args:
            layer: weights, input, mask.
            gradient: ∂ℓ/∂F of every token, averaging over the batch included.
            curvature: Λ of every token (N = B·L, or 1), for the outer part.
            functional_curvature: a further Λ, counted with the functional part: what the network
                behind the attention adds, Σ_c (∂ℓ/∂output_c) ∂²output_c/∂F², where H_o is Gauss-Newton
                in that network's output and `curvature` is Jᵀ(∂²ℓ/∂output²)J.
        """
        self.layer = layer
        self.groups = tuple(group for group in GROUPS if group in layer.parameters)
        self._gradient = gradient
        self._given = (curvature, functional_curvature)
        curvatures = [c for c in (curvature, functional_curvature) if c is not None]
        self._positions = _positions_that_matter(gradient, curvatures)
        self._norms: dict[tuple[Piece, Piece, Part], float] = {}
        self._blocks: BoundedCache[KroneckerSum] = BoundedCache(layer.memory_limit)
        self.curvature = self._restricted(curvature)

    def block(
        self, row: str, column: str, part: Part = "full", head: int | tuple[int, int] | None = None
    ) -> ExactOperator:
        """The Hessian block of two groups, ∂²ℓ/∂(row)∂(column).

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
        heads = _pair(head)
        rows = self._pieces(row, heads[0])
        columns = self._pieces(column, heads[1])
        if len(rows) == len(columns) == 1:
            return self._piece_block(rows[0], columns[0], part)
        return self._grid(rows, columns, part)

    def whole(self, part: Part = "full") -> ExactOperator:
        """The Hessian of all groups together, in the order of `groups`."""
        check_name("part", part, PARTS)
        pieces = [piece for group in self.groups for piece in self._pieces(group, None)]
        return self._grid(pieces, pieces, part)

    def dense(self, part: Part = "full") -> Float[Tensor, "P P"]:
        """The whole matrix, assembled; groups in the order of `groups`, each flattened row by row.

        Returns:
            The matrix, in the dtype of the input.

        Raises:
            ArgumentError: an unknown part.

        Cost: N K² D² multiplications and as many numbers as the matrix has.
        """
        check_name("part", part, PARTS)
        if pays_off(self.layer):
            return assembled_through_product(self, self.in_product(), part)
        return self.whole(part).dense()

    def in_product(self) -> AttentionHessian:
        """The Hessian of the same layer in one matrix, the product W_Q W_Kᵀ, instead of W_Q and W_K.

        One head; the group is called query_key, and the scores keep their scale.

        Returns:
            A Hessian with the group query_key in the place of query and key.
        """
        assert self.layer.key is not None
        assert len(self.layer.query) == 1
        others = [group for group in self.groups if group not in ("query", "key")]
        return AttentionHessian(
            replace(
                self.layer,
                query=self.layer.query @ self.layer.key.mT,
                key=None,
                parameters=("query_key", *others),
            ),
            gradient=self._gradient,
            curvature=self._given[0],
            functional_curvature=self._given[1],
        )

    def norms(self, head: int | None = None) -> dict[tuple[str, str, Part], float]:
        """Exact Frobenius norms of every block and part.

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

    @cached_property
    def moments(self) -> AttentionMoments:
        """First, second and third moments of the inputs under the attention rows, for every token."""
        return AttentionMoments(layer=self.layer, gradient=self._gradient)

    @cached_property
    def heads(self) -> list[HeadTokens]:
        """What each head knows about the tokens that enter the loss."""
        return list(self.layer.heads(self._gradient, self._positions))

    @cached_property
    def _outer(self) -> OuterPart:
        return OuterPart(self.heads, self.curvature)

    @cached_property
    def _functional_outer(self) -> OuterPart | None:
        given = self._given[1]
        return None if given is None else OuterPart(self.heads, self._restricted(given))

    def _pieces(self, group: str, head: int | None) -> list[Piece]:
        check_name("group", group, self.groups)
        pieces = self.layer.pieces(group)
        if head is None:
            return pieces
        chosen = [piece for piece in pieces if head in piece.heads]
        if not chosen:
            raise ArgumentError(f"head: expected 0 to {self.layer.query.shape[0] - 1}, got {head}")
        return chosen

    def _grid(self, rows: list[Piece], columns: list[Piece], part: Part) -> BlockGrid:
        symmetric = rows == columns
        return BlockGrid(
            lambda i, j: self._piece_block(rows[i], columns[j], part),
            row_lengths=[piece.length for piece in rows],
            column_lengths=[piece.length for piece in columns],
            like=self.layer.x,
            norm=lambda i, j: self._piece_norm(rows[i], columns[j], part),
            symmetric=symmetric,
            positive_semidefinite=symmetric and self._semidefinite(part),
        )

    def _piece_block(self, row: Piece, column: Piece, part: Part) -> KroneckerSum:
        return self._blocks.get((row, column, part), lambda: self._make(row, column, part))

    def _piece_norm(self, row: Piece, column: Piece, part: Part) -> float:
        """The norm of a block, remembered longer than the block itself."""
        if part == "full" and not self._piece_block(row, column, "functional").terms:
            part = "outer"
        key = (row, column, part)
        if key not in self._norms:
            self._norms[key] = self._piece_block(row, column, part).frobenius_norm()
        return self._norms[key]

    def _make(self, row: Piece, column: Piece, part: Part) -> KroneckerSum:
        """One part, or H_o + H_f; H_o itself where H_f is zero."""
        if part == "full":
            outer = self._piece_block(row, column, "outer")
            functional = self._piece_block(row, column, "functional")
            if not functional.terms:
                return outer
            terms = [*outer.terms, *functional.terms]
        else:
            terms = [] if part == "outer" else self._functional_terms(row, column)
            if jacobians := self._outer if part == "outer" else self._functional_outer:
                terms += jacobians.terms(row, column)
        return KroneckerSum(
            terms,
            row_shape=row.shape,
            column_shape=column.shape,
            like=self.layer.x,
            symmetric=row == column,
            positive_semidefinite=row == column and self._semidefinite(part),
            memory_limit=self.layer.memory_limit,
        )

    def _functional_terms(self, row: Piece, column: Piece) -> list[KroneckerTerm]:
        return [
            term
            for head in row.heads
            if head in column.heads
            for term in functional_terms(self.heads[head], row.group, column.group)
        ]

    def _semidefinite(self, part: Part) -> bool:
        return part == "outer" and self.curvature.positive_semidefinite

    def _restricted(self, curvature: TokenCurvature) -> TokenCurvature:
        """Λ at the positions that matter."""
        if curvature.shared:
            return curvature
        sequences = self.layer.x.shape[0]
        kept = curvature.numbers.unflatten(0, (sequences, -1))[:, self._positions].flatten(0, 1)
        held = "matrix" if curvature.factor is None else "factor"
        return replace(curvature, **{held: kept})


def _pair(head: int | tuple[int, int] | None) -> tuple[int | None, int | None]:
    """The heads of the rows and of the columns."""
    heads = head if isinstance(head, tuple) else (head, head)
    whole = all(h is None or (isinstance(h, int) and not isinstance(h, bool)) for h in heads)
    if len(heads) != 2 or not whole:
        raise ArgumentError(f"head: expected a number, a pair of numbers or None, got {head!r}")
    return heads


def _positions_that_matter(gradient: Tensor, curvatures: list[TokenCurvature]) -> Tensor:
    """Positions with a gradient or a curvature in any sequence; the others add nothing."""
    matters = (gradient != 0).any(-1).any(0)
    for curvature in curvatures:
        if curvature.shared:
            return torch.arange(gradient.shape[1], device=gradient.device)
        unseen = (~matters).nonzero()[:, 0]
        numbers = curvature.numbers.unflatten(0, gradient.shape[:2])[:, unseen]
        matters[unseen] = (numbers != 0).flatten(2).any(-1).any(0)
    return matters.nonzero()[:, 0]
