"""Gauss-Newton split of H_f at the attention scores: H_f = H_o^T + H_f^T.

Let z be the scores T of all heads, together with the parameters that T does not depend on (W_V,
W_O, gains). Let φ(z) be the loss gradient times the network's output, ⟨∂ℓ/∂F, F⟩, so that
H_f = ∂²φ. The Gauss-Newton split of φ at z is exact:

    H_o^T = (∂z)ᵀ (∂²φ/∂z²) (∂z), H_f^T = Σ_ij (∂φ/∂T_ij) ∂²T_ij.

T = s X W_Q W_Kᵀ Xᵀ is bilinear. So H_f^T is zero but between the query and key weights of a head.
There it is ∂ℓ/∂(W_Q W_Kᵀ) ⊗ I_K, whose eigenvalues come in ± pairs. With one matrix it is zero.

H_o^T is the rest. Its blocks between query and key weights contain the second derivative of
softmax: third moments, which are zero with linear scores. Its other blocks contain only first
derivatives of softmax.

With norms of queries and keys, scores are not bilinear. H_f^T then also has blocks of the queries,
of the keys and of the norms' parameters.

Source: Ormaniec et al. 2025, Remark D.1.
"""

from hessblocks.conventions import Part
from hessblocks.linalg import KroneckerTerm
from hessblocks.theory.hessian import AttentionHessian
from hessblocks.theory.piecewise import Piece, PiecewiseHessian


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
