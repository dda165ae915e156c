"""Attention moments: moments of the inputs under the attention rows.

They say why a block of the Hessian is large or small.

One-hot attention and identical tokens (rank collapse) make the second and third moment vanish, and
with them every query and key block.

Letters: B sequences, L tokens, H heads, D width, O width of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.theory.heads import HeadTokens
from hessblocks.theory.layer import AttentionLayer


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMoments:
    """Attention moments M_1, M_2 and M_3 for every sequence, head and token.

    With linear scores the second moment is Σ x_j x_jᵀ over the permitted keys and the third is
    zero.

    Source: Ormaniec et al. 2025, section 4 (their first, second and third attention moment
    matrices).
    """

    layer: AttentionLayer
    """The attention layer."""
    gradient: Float[Tensor, "B L O"]
    """∂ℓ/∂F, the direction along which the third moment is contracted."""

    @property
    def first(self) -> Float[Tensor, "B H L D"]:
        """Mean m = Σ_j a_j x_j; over one sequence the rows of M_1 = A X."""
        return self._stacked(lambda head: head.mean)

    @property
    def second(self) -> Float[Tensor, "B H L D D"]:
        """Covariance M_2 = Σ_j a_j (x_j − m)(x_j − m)ᵀ; D² numbers a token and head."""
        return self._stacked(_second)

    @property
    def third(self) -> Float[Tensor, "B H L D D"]:
        """Third central moment contracted with u = W_V W_O g; D² numbers a token and head."""
        return self._stacked(_third)

    @property
    def second_by_key(self) -> Float[Tensor, "B H L L"]:
        """Share a_ij ‖x_j − m_i‖² of key j (last axis) in tr M_2; ‖x_j‖² for linear scores."""
        return self._stacked(_second_by_key)

    def norms(self) -> dict[str, Float[Tensor, "B H L"]]:
        """Compute the Frobenius norm of each moment of every token: first, second, third."""
        return {
            "first": self._stacked(lambda head: head.mean.norm(dim=-1)),
            "second": self._stacked(lambda head: _second(head).flatten(1).norm(dim=-1)),
            "third": self._stacked(lambda head: _third(head).flatten(1).norm(dim=-1)),
        }

    def _stacked(self, of_head: Callable[[HeadTokens], Tensor]) -> Tensor:
        """Stack one quantity of every head, (B, H, L, ...)."""
        heads = self.layer.heads(self.gradient)
        per_head = [of_head(head).unflatten(0, self.layer.x.shape[:2]) for head in heads]
        return torch.stack(per_head, dim=1)


def _second(head: HeadTokens) -> Tensor:
    return head.covariance(head.carried_x, head.carried_x)


def _second_by_key(head: HeadTokens) -> Tensor:
    """Take distances by differences: ‖x_j‖² − 2 x_j·m_i + ‖m_i‖² would cancel."""
    carried = head.carried_x
    centres = head.slope @ carried if head.softmax else torch.zeros_like(carried)
    distances = torch.cdist(centres, carried, compute_mode="donot_use_mm_for_euclid_dist")
    return (head.slope * distances.square()).flatten(0, 1)


def _third(head: HeadTokens) -> Tensor:
    if not head.softmax:
        return head.x.new_zeros(head.x_query.shape[0], head.x.shape[2], head.x.shape[2])
    return head.third_moment(head.carried_x, head.carried_x)
