"""Hessian of a loss in the weights of one self-attention layer, in closed form.

Letters: B sequences, L tokens, D width, H heads, K query-key width, V value width, O output width,
C rank of a curvature factor, N = B·L, Q positions of a sequence, P all parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.conventions import PARTS, Part
from hessblocks.errors import ArgumentError, check_name
from hessblocks.linalg import ExactOperator, KroneckerTerm
from hessblocks.theory.functional import score_terms, softmax_terms
from hessblocks.theory.head_tokens import HeadTokens
from hessblocks.theory.layer import AttentionLayer, AttentionMoments
from hessblocks.theory.outer import OuterPart, TokenCurvature, TokenJacobian
from hessblocks.theory.piecewise import GROUPS, Piece, PiecewiseHessian, Terms

HELD = 8
"""Largest memory of one key block's matrices, in memory limits."""
ALWAYS = 1 << 26
"""Bytes that these matrices may take for any memory limit."""


class AttentionHessian(PiecewiseHessian):
    """Hessian H = H_o + H_f of one attention layer, in blocks that are never assembled.

    Groups are flattened head by head, each head's weight row by row; `groups` gives their order.
    """

    def __init__(
        self,
        layer: AttentionLayer,
        *,
        gradient: Float[Tensor, "B L O"],
        curvature: TokenCurvature,
        functional_curvature: TokenCurvature | None = None,
        positions: Int[Tensor, " Q"] | None = None,
    ) -> None:
        """Combine a layer with the derivatives of the loss by its output. No block is computed yet.

        Args:
            layer: weights, input, mask.
            gradient: ∂ℓ/∂F of every token, including the factor of the mean over the batch.
            curvature: Λ of every token (N = B·L, or 1), for the outer part.
            functional_curvature: a further Λ, counted with the functional part. A network
                after the attention adds it: Σ_c (∂ℓ/∂output_c) ∂²output_c/∂F², where H_o is
                Gauss-Newton in that network's output and `curvature` is Jᵀ(∂²ℓ/∂output²)J.
            positions: positions of each sequence with given Λ, N = B·Q; all others have neither
                gradient nor curvature. None: all positions.
        """
        super().__init__(layer.x, layer.memory_limit)
        self.layer = layer
        self.groups = tuple(group for group in GROUPS if group in layer.parameters)
        self._gradient = gradient
        self._given = (curvature, functional_curvature)
        curvatures = [c for c in (curvature, functional_curvature) if c is not None]
        self._at = positions
        self._positions = positions
        if positions is None:
            self._positions = _positions_that_matter(gradient, curvatures)
        self.curvature = self._restricted(curvature)

    def with_layer(self, layer: AttentionLayer) -> AttentionHessian:
        """Build the Hessian of another layer, with the same loss gradient and curvature."""
        return AttentionHessian(
            layer,
            gradient=self._gradient,
            curvature=self._given[0],
            functional_curvature=self._given[1],
            positions=self._at,
        )

    @cached_property
    def moments(self) -> AttentionMoments:
        """Moments of the inputs under the attention rows, first to third, for every token."""
        return AttentionMoments(layer=self.layer, gradient=self._gradient)

    @cached_property
    def heads(self) -> list[HeadTokens]:
        """Heads, each with the tokens that enter the loss."""
        return list(self.layer.heads(self._gradient, self._positions))

    @cached_property
    def _outer(self) -> OuterPart:
        return OuterPart(self.heads, self.curvature)

    @cached_property
    def _functional_outer(self) -> OuterPart | None:
        curvature = self._given[1]
        return None if curvature is None else OuterPart(self.heads, self._restricted(curvature))

    def pieces(self, group: str, head: int | None = None) -> list[Piece]:
        """List the pieces of a group in the order of its parameters, or those of one head.

        Returns:
            At least one.

        Raises:
            ArgumentError: there is no such head.
        """
        pieces = self.layer.pieces(group)
        if head is None:
            return pieces
        chosen = [piece for piece in pieces if head in piece.heads]
        if not chosen:
            raise ArgumentError(f"head: expected 0 to {self.layer.query.shape[0] - 1}, got {head}")
        return chosen

    def block(
        self, row: str, column: str, part: Part = "full", head: int | tuple[int, int] | None = None
    ) -> ExactOperator:
        """Return the Hessian block of two groups; see `PiecewiseHessian.block`."""
        if row == column == "projection" and head is None and row in self.groups:
            check_name("part", part, PARTS)
            piece = self.layer.joined_projection()  # one piece, since all heads share the matrices
            return self._piece_block(piece, piece, part)
        return super().block(row, column, part, head)

    def terms(self, row: Piece, column: Piece, part: Part) -> Terms:
        """Collect the terms of H_o or H_f between two pieces."""
        if part == "functional":
            return [*self.softmax_terms(row, column), *self.score_terms(row, column)]
        self._check_reach(row, column)
        return self._outer.terms(row, column)

    def softmax_terms(self, row: Piece, column: Piece) -> Terms:
        """Collect the terms of H_f of first derivatives of the scores, and those of Λ_f."""
        terms = self._of_heads(softmax_terms, row, column)
        if self._functional_outer is not None:
            terms += self._functional_outer.terms(row, column)
        return terms

    def score_terms(self, row: Piece, column: Piece) -> Terms:
        """Collect the terms of H_f from second derivatives of the scores."""
        return self._of_heads(score_terms, row, column)

    @property
    def key_work(self) -> int:
        """Multiplications of one head's key block: N L (D K)² if W_K is one long vector, else 0."""
        if not self.layer.joined:
            return 0
        assert self.layer.key is not None
        return len(self.heads[0].x_query) * self.layer.x.shape[1] * self.layer.key[0].numel() ** 2

    def _check_reach(self, row: Piece, column: Piece) -> None:
        """Check that blocks of keys with norms or rotary positions fit the memory."""
        if not self.layer.joined or "key" not in (row.group, column.group):
            return
        head = self.heads[0]
        tokens, (width, value_width) = len(head.x_query), head.w_value.shape
        key = row if row.group == "key" else column
        rows = key.length if row.group == column.group else 0
        valued = "value" in (row.group, column.group)
        entries = width if valued else max(value_width, head.w_query.shape[1])
        needed = (tokens * entries + rows) * key.length * head.x.element_size()
        limit = max(ALWAYS, HELD * self.layer.memory_limit)
        if needed > limit:
            raise ArgumentError(
                f"key: rotary positions or norms of queries and keys make its blocks hold {tokens} "
                f"× {entries} × {key.length} numbers ({needed / 1e9:.1f} GB; {limit / 1e9:.1f} GB "
                "are allowed); raise memory_limit, use fewer tokens or hessblocks.Hessian"
            )

    def jacobians(self, piece: Piece) -> list[TokenJacobian]:
        """Collect ∂F/∂(piece) of every token that matters, one for each head that uses it."""
        return self._plain.of_piece(piece)

    @cached_property
    def _plain(self) -> OuterPart:
        """Jacobians without a factor of Λ."""
        none = self._gradient.new_zeros(1, self._gradient.shape[-1], self._gradient.shape[-1])
        return OuterPart(self.heads, TokenCurvature(matrix=none))

    def _of_heads(
        self, terms: Callable[[HeadTokens, str, str], Terms], row: Piece, column: Piece
    ) -> Terms:
        """Collect the terms of every head that both pieces belong to."""
        self._check_reach(row, column)
        shared = [head for head in row.heads if head in column.heads]
        return [term for h in shared for term in terms(self.heads[h], row.group, column.group)]

    def semidefinite(self, part: Part) -> bool:
        """Tell whether H_o is a sum of squares: Λ has no negative eigenvalue."""
        return part == "outer" and self.curvature.positive_semidefinite

    def _restricted(self, curvature: TokenCurvature) -> TokenCurvature:
        """Restrict Λ to the positions that matter."""
        if curvature.shared or self._at is not None:
            return curvature
        sequences = self.layer.x.shape[0]
        numbers = curvature.numbers.unflatten(0, (sequences, -1))[:, self._positions].flatten(0, 1)
        form = "matrix" if curvature.factor is None else "factor"
        return replace(curvature, **{form: numbers})


def _positions_that_matter(gradient: Tensor, curvatures: list[TokenCurvature]) -> Tensor:
    """Find the positions with a gradient or curvature in any sequence; others add nothing."""
    matters = (gradient != 0).any(-1).any(0)
    for curvature in curvatures:
        if curvature.shared:
            return torch.arange(gradient.shape[1], device=gradient.device)
        # these alone: the numbers of Λ are many
        unseen = (~matters).nonzero()[:, 0]
        numbers = curvature.numbers.unflatten(0, gradient.shape[:2])[:, unseen]
        matters[unseen] = (numbers != 0).flatten(2).any(-1).any(0)
    return matters.nonzero()[:, 0]


class ScoreSplit(PiecewiseHessian):
    """Split of H_f that adds up exactly: outer is H_o^T, functional H_f^T, full their sum H_f."""

    def __init__(self, hessian: AttentionHessian) -> None:
        """Split the functional part of a Hessian. No block is computed yet.

        Args:
            hessian: Hessian of one layer. The term Jᵀ Λ_f J of a network after the attention
                belongs to H_o^T.
        """
        super().__init__(hessian.layer.x, hessian.layer.memory_limit)
        self.groups = hessian.groups
        self._hessian = hessian

    def pieces(self, group: str, head: int | None = None) -> list[Piece]:
        """List the pieces of a group, as the Hessian has them."""
        return self._hessian.pieces(group, head)

    def terms(self, row: Piece, column: Piece, part: Part) -> list[KroneckerTerm]:
        """Collect the terms of H_o^T (outer) or H_f^T (functional) between two pieces."""
        if part == "functional":
            return self._hessian.score_terms(row, column)
        return self._hessian.softmax_terms(row, column)

    def semidefinite(self, part: Part) -> bool:
        """Return False: both parts have eigenvalues of both signs."""
        return False
