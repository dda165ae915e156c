"""Gauss-Newton (GGN) part H_o = Σ_n J_nᵀ Λ_n J_n, block by block, from every head's Jacobians.

The Jacobian of token n's attention output in one weight is (vector) ⊗ (matrix), and so is every
block. Per head, with s the scale, β the gain of A and covariances over the attention row:

| weight | vector | matrix, before the head's W_O |
| query | x | G = s β W_Vᵀ M_2 W_K |
| key | q = W_Qᵀ x | P = s β W_Vᵀ M_2 (vector and matrix in the other order) |
| value | f | identity |
| projection | z = W_Vᵀ f | identity, after W_O |
| alpha, beta, gamma | 1 | W_Vᵀ x, W_Vᵀ m, −W_Vᵀ c̄ |

With norms or rotary positions between weights and scores G is s β W_Vᵀ M_2(x, z) y', z the final
keys and y' the slope of the final query. The keys' weights are then one long vector with Jacobian
Σ_j ρ_j (x_j ⊗ the slope of q·k_j in k_j). So are the parameters of both norms.

Letters: N tokens, D width of the input, V value width, O width of the output, C rank of a factor of
Λ (V where Λ is whole), V and U widths of two heads' values, P entries of a Jacobian's vector, R
columns of its matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg import BoundedCache, KroneckerTerm, TokenMatrices
from hessblocks.theory.head_tokens import HeadTokens
from hessblocks.theory.piecewise import NORMS, Piece


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenCurvature:
    """Loss curvature Λ_n = ∂²ℓ/∂F_n²: a symmetric matrix, or a factor R_n with R_nᵀ R_n = Λ_n."""

    matrix: Float[Tensor, "#N O O"] | None = None
    """(N | 1, O, O), symmetric; may be indefinite."""
    factor: Float[Tensor, "#N C O"] | None = None
    """(N | 1, C, O); exactly one of `matrix` and `factor` is given."""
    positive_semidefinite: bool = False
    """Whether every Λ_n is known to be positive semi-definite; a factor always is."""

    def __post_init__(self) -> None:
        assert (self.matrix is None) != (self.factor is None)
        if self.factor is not None:
            object.__setattr__(self, "positive_semidefinite", True)

    @property
    def numbers(self) -> Float[Tensor, "#N rows O"]:
        """The stored tensor: `matrix` or `factor`."""
        numbers = self.matrix if self.factor is None else self.factor
        assert numbers is not None
        return numbers

    @property
    def shared(self) -> bool:
        """Whether all tokens share one Λ."""
        return self.numbers.shape[0] == 1

    def low_rank(self, value_width: int) -> bool:
        """Tell whether Jacobians are smaller when multiplied by the factor R: C < value width."""
        factor = self.factor
        return factor is not None and factor.shape[0] > 1 and factor.shape[1] < value_width

    def between(
        self, left: Float[Tensor, "V O"] | None, right: Float[Tensor, "U O"] | None
    ) -> Float[Tensor, "#N rows columns"]:
        """Multiply A Λ_n Bᵀ, maps A (V, O) and B (U, O), None: identity; (N | 1, V, U)."""
        if self.factor is not None:
            return _apply(self.factor, left).mT @ _apply(self.factor, right)
        assert self.matrix is not None
        product = _apply(self.matrix, right)
        return product if left is None else left @ product


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenJacobian:
    """Jacobian ∂F_n/∂(weight) = mapᵀ (matrix_n ⊗ vector_n) of every token."""

    vector: Float[Tensor, "N P"]
    """Vector of each token, (N, P)."""
    matrix: Float[Tensor, "N C R"] | None
    """Matrix of each token, (N, C, R), or None for the identity."""
    output_map: Float[Tensor, "V O"] | None
    """Map (V, O) from the matrix' rows to the attention output; None for the identity."""
    swapped: bool = False
    """Whether the weight's rows belong to the matrix rather than to the vector."""

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix; the vector belongs to the head."""
        return 0 if self.matrix is None else self.matrix.nbytes


class OuterPart:
    """Gauss-Newton terms Σ_n J_nᵀ Λ_n J_n of any two pieces of a layer's parameters."""

    def __init__(self, heads: Sequence[HeadTokens], curvature: TokenCurvature) -> None:
        """Store heads and curvature.

        Args:
            heads: all heads of the layer.
            curvature: Λ at the attention output.
        """
        self._heads = heads
        self._curvature = curvature
        self._factor = curvature.factor if curvature.low_rank(heads[0].w_value.shape[1]) else None
        self._jacobians: BoundedCache[TokenJacobian] = BoundedCache(heads[0].memory_limit // 4)
        self._halves: BoundedCache[Tensor] = BoundedCache(heads[0].memory_limit // 4)
        self._ones = heads[0].x.new_ones(heads[0].gradient.shape[0], 1)

    def terms(self, row: Piece, column: Piece) -> list[KroneckerTerm]:
        """Build the block of two pieces: one term for each pair of heads that use them."""
        return [
            KroneckerTerm(
                row=left.vector,
                column=right.vector,
                matrices=self._matrices(left, right),
                row_swapped=left.swapped,
                column_swapped=right.swapped,
            )
            for left in self.of_piece(row)
            for right in self.of_piece(column)
        ]

    def of_piece(self, piece: Piece) -> list[TokenJacobian]:
        """Build the Jacobians of a piece, one for each head that uses it."""
        if not piece.heads:
            return [self._projection(self._ones)]
        if piece.group == "projection":
            values = [self._heads[head].values for head in piece.heads]
            # the bias is one more row of W_O, with input 1
            biased = piece.shape[0] > sum(value.shape[1] for value in values)
            return [self._projection(torch.cat([*values, *([self._ones] * biased)], dim=1))]
        return [self._jacobian(piece.group, head) for head in piece.heads]

    def _matrices(self, left: TokenJacobian, right: TokenJacobian) -> TokenMatrices:
        """Multiply (left matrix)ᵀ U Λ U'ᵀ (right matrix), thin where that holds fewer numbers."""
        if self._factor is not None:
            assert right.matrix is not None
            inner = right.matrix
        else:
            inner = self._between(left.output_map, right.output_map)
            inner = inner if right.matrix is None else inner @ right.matrix
        return TokenMatrices(left=left.matrix, right=inner, symmetric=left is right).compact()

    def _between(self, left: Tensor | None, right: Tensor | None) -> Tensor:
        """Multiply U Λ U'ᵀ; U Λ is cached, since one row of blocks shares it."""
        matrix = self._curvature.matrix
        if left is None or matrix is None:
            return self._curvature.between(left, right)
        half = self._halves.get(id(left), lambda: (matrix @ left.mT).mT)
        return half if right is None else half @ right.mT

    def _jacobian(self, group: str, index: int) -> TokenJacobian:
        return self._jacobians.get((group, index), lambda: self._make(group, index))

    def _make(self, group: str, index: int) -> TokenJacobian:
        head = self._heads[index]
        factor = head.scale * head.beta
        matrix: Tensor | None
        if group in ("query", "query_key", "query_norm"):
            vector = self._ones if group == "query_norm" else head.x_query
            turned = head.respond(self._directions(index), factor * head.carried_keys)
            matrix = head.toward_query(turned, group)
        elif group in ("key", "key_norm"):
            vector = self._ones if head.joined else head.queries
            matrix = factor * head.respond(self._directions(index), head.key_slopes(group))
        elif group == "value":
            vector = head.features
            matrix = None if self._factor is None else self._factor @ head.w_projection.mT
        else:
            vector = self._ones
            matrix = (gain_feature(head, group) @ head.w_value)[:, :, None]
            if (directions := self._directions(index)) is not None:
                matrix = directions @ matrix
        return TokenJacobian(
            vector=vector,
            matrix=matrix,
            output_map=head.w_projection,
            swapped=group in ("key", *NORMS),
        )

    def _projection(self, vector: Tensor) -> TokenJacobian:
        return TokenJacobian(vector=vector, matrix=self._factor, output_map=None)

    def _directions(self, index: int) -> Tensor | None:
        """Map the factor R of a low-rank Λ to this head's value space: R W_Oᵀ, (N, C, V)."""
        return self._jacobian("value", index).matrix if self._factor is not None else None


def _apply(rows: Tensor, weight: Tensor | None) -> Tensor:
    """Multiply rows by the transposed map."""
    return rows if weight is None else rows @ weight.mT


def gain_feature(head: HeadTokens, gain: str) -> Float[Tensor, "N D"]:
    """Compute ∂f/∂(gain): x, m or −c̄, (N, D)."""
    if gain == "alpha":
        return head.x_query
    return head.mean if gain == "beta" else -head.uniform_mean
