"""Loss curvature Λ_n at the attention output, one matrix for each token.

Letters: N tokens (1 where all share one matrix), O width of the attention output, C rank of a
factor, V and U widths of two heads' values.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


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
        """Numbers held: those of the matrix or of the factor."""
        held = self.matrix if self.factor is None else self.factor
        assert held is not None
        return held

    @property
    def shared(self) -> bool:
        """True where all tokens have one Λ."""
        return self.numbers.shape[0] == 1

    def low_rank(self, value_width: int) -> bool:
        """Tell whether Jacobians are best held in the C directions of the factor."""
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


def _apply(rows: Tensor, weight: Tensor | None) -> Tensor:
    """Multiply rows by the transposed map."""
    return rows if weight is None else rows @ weight.mT
