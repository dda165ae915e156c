"""Matrix-free Hessian of the last layer: attention, the network after it, and the unembedding.

Let Δ_i change piece i, a weight. It adds E_i Δ_iᵀ v_i at the site s of each token: v_i is the
layer's input, and E_i maps to the site (the identity, except for the attention's weights). With M,
F, X as in `tail` and Λ_h = ∂²ℓ/∂h²:
    H_o(i, j) = Σ_n v_i v_jᵀ ⊗ E_iᵀ M_sᵀ Λ_h M_t E_j
    H_f(i, j) = Σ_n v_i v_jᵀ ⊗ E_iᵀ F_st E_j; if j is a linear layer whose input x_t depends on i,
                plus Σ_n v_i g_tᵀ ⊗ E_iᵀ X_tsᵀ, g_t = M_tᵀ u; likewise with i and j exchanged.
For the unembedding, with logits W h and residual r:
    H_o(W, j) = Σ_n h v_jᵀ ⊗ (∂²ℓ/∂f²) W M_t E_j, H_f(W, j) = Σ_n r v_jᵀ ⊗ M_t E_j.

Letters: N tokens, P entries of a vector, S and T sizes of two sites, R columns of a map, D width,
C classes, F rows of a factor, Q parameters of a group.
"""

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import Part
from hessblocks.curvature.exact.input_norm import InputNorm
from hessblocks.curvature.exact.tail import ATTENTION, TokenTail
from hessblocks.curvature.exact.unembedding import SeenLoss
from hessblocks.errors import ArgumentError
from hessblocks.linalg import ExactOperator, KroneckerTerm, TokenMatrices
from hessblocks.theory import AttentionHessian, Piece, PiecewiseHessian

UNEMBEDDING = "unembedding"
"""Name of the group of the output layer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Move:
    """Derivative of a piece's site by the piece: Δ ↦ E Δᵀ v."""

    site: str
    vector: Float[Tensor, "N P"]
    map: Float[Tensor, "#N S R"] | None = None
    """E; None for the identity."""
    swapped: bool = False
    """Whether the piece is flattened with the index of E first, that of v second."""

    def seen(self, matrices: Float[Tensor, "#N rows S"]) -> Float[Tensor, "#N rows R"]:
        """Compute `matrices` E."""
        return matrices if self.map is None else matrices @ self.map


class LastBlockHessian(PiecewiseHessian):
    """H, H_o and H_f by all parameters from the last attention on, as matrix-free operators.

    Groups: those of `AttentionHessian` (query, key, value, projection, gains), gain and shift of
    the norm before it, each later linear layer with its bias (by the module's name), each other
    parameter (by its name), and `unembedding`. A weight is flattened (inputs, outputs) row by row,
    with a bias as the last row.
    """

    def __init__(
        self,
        attention: AttentionHessian,
        tail: TokenTail,
        loss: SeenLoss,
        *,
        norm: InputNorm | None,
        unembedding: bool,
        tied: bool,
        memory_limit: int,
    ) -> None:
        """Combine the attention with the network after it. No block is computed yet.

        Args:
            attention: blocks of the attention.
            tail: network after the attention, with its parameters.
            loss: loss as a function of the final hidden states.
            norm: the norm before the attention; None if it has no trained parameters.
            unembedding: whether the output layer is trained.
            tied: whether its weight is also the embedding's.
            memory_limit: bytes of intermediate results.
        """
        super().__init__(tail.hidden, memory_limit)
        self.attention = attention
        """Blocks of the attention's groups."""
        self.tied = tied
        """Whether the weight of `unembedding` is also the embedding's; its block then ignores the
        embedding, as if that were constant."""
        self._tail = tail
        self._loss = loss
        self._norm = norm
        before = [] if norm is None else [name for name in norm.places if name not in tail.parts]
        after = (UNEMBEDDING,) * unembedding
        self.groups = (*attention.groups, *before, *tail.parts, *after)

    def pieces(self, group: str, head: int | None = None) -> list[Piece]:
        """List the pieces of a group, or of one head of an attention group."""
        if group in self.attention.groups:
            return self.attention.pieces(group, head)
        if head is not None:
            raise ArgumentError(f"head: {group} has no heads; leave head out")
        if group == UNEMBEDDING:
            shape = self._loss.shape
        elif self._norm is not None and group in self._norm.places:
            rows = self._norm.places[group]
            shape = (1, rows.stop - rows.start)
        else:
            shape = self._tail.parts[group].shape
        return [Piece(group=group, heads=(), shape=shape)]

    def block(
        self, row: str, column: str, part: Part = "full", head: int | tuple[int, int] | None = None
    ) -> ExactOperator:
        """Return the Hessian block of two groups; see `PiecewiseHessian.block`."""
        if {row, column} <= set(self.attention.groups):
            return self.attention.block(row, column, part, head)
        return super().block(row, column, part, head)

    def terms(self, row: Piece, column: Piece, part: Part) -> list[KroneckerTerm]:
        """List the terms of H_o or H_f between two pieces."""
        if self._attends(row) and self._attends(column):
            return self.attention.terms(row, column, part)
        if column.group == UNEMBEDDING:
            return [term.adjoint() for term in self.terms(column, row, part)]
        moves = self._moves(column)
        if row.group == UNEMBEDDING:
            return [self._with_unembedding(move, part) for move in moves]
        others = moves if row == column else self._moves(row)
        if part == "outer":
            return [self._outer(a, b) for a in others for b in moves]
        terms = self._within_attention(row, column)
        for a in others:
            for b in moves:
                terms += [*self._curved(a, b), *self._fed(a, b, column)]
                if row != column:
                    terms += [term.adjoint() for term in self._fed(b, a, row)]
        return terms

    def _made(self, row: Piece, column: Piece, part: Part) -> ExactOperator:
        if not row.group == column.group == UNEMBEDDING:
            return super()._made(row, column, part)
        return self._sum([], row, column, part) if part == "functional" else self._loss.block()

    def _attends(self, piece: Piece) -> bool:
        return piece.group in self.attention.groups

    def _moves(self, piece: Piece) -> list[_Move]:
        moves = []
        if self._normed(piece):
            moves.append(_Move(site=ATTENTION, vector=self._ones, map=self._jacobians[piece.group]))
        if piece.group in self._tail.parts:
            moves.append(_Move(site=piece.group, vector=self._tail.inputs(piece.group)))
        if not self._attends(piece):
            return moves
        for jacobian in self.attention.jacobians(piece):
            to_site = jacobian.matrix
            if jacobian.output_map is not None:
                across = jacobian.output_map.mT
                to_site = across[None] if to_site is None else across @ to_site
            moves.append(
                _Move(site=ATTENTION, vector=jacobian.vector, map=to_site, swapped=jacobian.swapped)
            )
        return moves

    def _normed(self, piece: Piece) -> bool:
        return self._norm is not None and piece.group in self._norm.places

    @cached_property
    def _ones(self) -> Float[Tensor, "N 1"]:
        hidden = self._tail.hidden
        return hidden.new_ones(len(hidden), 1)

    @cached_property
    def _jacobians(self) -> dict[str, Float[Tensor, "N S R"]]:
        """Jacobian of the attention's output by each parameter of the norm before it."""
        assert self._norm is not None
        return {name: self._norm.jacobian(name) for name in self._norm.places}

    def _within_attention(self, row: Piece, column: Piece) -> list[KroneckerTerm]:
        """List the attention's second-derivative terms with the norm before it in row or column."""
        if self._norm is None:
            return []
        if self._normed(row) and self._normed(column):
            return self._norm.functional_own(row.group, column.group)
        if self._normed(row) and self._attends(column):
            return self._norm.functional(row.group, column)
        if self._normed(column) and self._attends(row):
            return [term.adjoint() for term in self._norm.functional(column.group, row)]
        return []

    def _outer(self, row: _Move, column: _Move) -> KroneckerTerm:
        left, right = self._loss.halves(self._tail.first(row.site), self._tail.first(column.site))
        matrices = TokenMatrices(
            left=row.seen(left), right=column.seen(right), symmetric=row is column
        )
        return _term(row, column, matrices.compact())

    def _curved(self, row: _Move, column: _Move) -> list[KroneckerTerm]:
        """List the terms with F_st; none if F_st is zero."""
        second = self._tail.second(row.site, column.site, self._loss.gradient)
        if not second.any():
            return []
        matrices = row.seen(column.seen(second).mT).mT
        return [_term(row, column, TokenMatrices(right=matrices))]

    def _fed(self, row: _Move, column: _Move, piece: Piece) -> list[KroneckerTerm]:
        """List the terms with X_ts, if the row's site is before the column's linear layer."""
        part = self._tail.parts.get(piece.group)
        if part is None or not part.linear or row.site == column.site:
            return []
        between = self._tail.between(column.site, row.site)
        if not between.any():
            return []
        pulled = (self._loss.gradient[:, None] @ self._tail.first(column.site))[:, 0]
        input_of = _Move(site=column.site, vector=pulled, swapped=True)
        return [_term(row, input_of, TokenMatrices(right=row.seen(between).mT))]

    def _with_unembedding(self, column: _Move, part: Part) -> KroneckerTerm:
        moved = column.seen(self._tail.first(column.site))
        if part == "outer":
            row = _Move(site=UNEMBEDDING, vector=self._loss.inputs)
            both = TokenMatrices(left=self._loss.through, right=moved)
            return _term(row, column, both.compact())
        row = _Move(site=UNEMBEDDING, vector=self._loss.residual, swapped=True)
        return _term(row, column, TokenMatrices(right=self._loss.padded(moved)))

    def semidefinite(self, part: Part) -> bool:
        """True: H_o is a sum of squares."""
        return part == "outer"


def _term(row: _Move, column: _Move, matrices: TokenMatrices) -> KroneckerTerm:
    return KroneckerTerm(
        row=row.vector,
        column=column.vector,
        matrices=matrices,
        row_swapped=row.swapped,
        column_swapped=column.swapped,
    )
