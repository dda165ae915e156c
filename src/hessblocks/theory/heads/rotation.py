"""Rotary positions (RoPE): queries and keys turned pair by pair, by an angle of the token.

The score of tokens i and j is s (R_i q_i)·(R_j k_j) (Su et al., 2021).

Letters: B sequences, L tokens, K query-key width, I tokens that something is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotation:
    """Rotation R_j v = cos_j ⊙ v + sin_j ⊙ (v Q) of row vectors v of token j."""

    cosines: Float[Tensor, "#B L K"]
    """1 where nothing turns."""
    sines: Float[Tensor, "#B L K"]
    """0 where nothing turns."""
    quarter: Float[Tensor, "K K"]
    """Q, from a row vector to the same turned by a right angle in each pair."""

    @classmethod
    def of_halves(
        cls, cosines: Float[Tensor, "#B L turned"], sines: Float[Tensor, "#B L turned"], width: int
    ) -> Rotation:
        """Pair entries (i, i + half) of the first `turned` ones, as GPT-NeoX and Llama do.

        Args:
            cosines: of the angles, the same for both of a pair.
            sines: the same.
            width: K, at least as many as are turned.

        Returns:
            The rotation of vectors of that width.
        """
        turned = cosines.shape[-1]
        quarter = cosines.new_zeros(width, width)
        half = torch.arange(turned // 2, device=cosines.device)
        quarter[half, half + turned // 2] = 1.0
        quarter[half + turned // 2, half] = -1.0
        rest = (0, width - turned)
        return cls(
            cosines=torch.nn.functional.pad(cosines, rest, value=1.0),
            sines=torch.nn.functional.pad(sines, rest),
            quarter=quarter,
        )

    def at(self, positions: Int[Tensor, " I"]) -> Rotation:
        """Restrict the rotation to some of the tokens."""
        cosines, sines = self.cosines[:, positions], self.sines[:, positions]
        return Rotation(cosines=cosines, sines=sines, quarter=self.quarter)

    def turn(self, vectors: Float[Tensor, "B L K"]) -> Float[Tensor, "B L K"]:
        """Turn the vectors, R_j v_j."""
        return vectors * self.cosines + (vectors @ self.quarter) * self.sines

    def turn_back(self, vectors: Float[Tensor, "I *rows K"]) -> Float[Tensor, "I *rows K"]:
        """Turn back, R_jᵀ v_j, any number of vectors a token (sequence by sequence)."""
        shape = (-1, *(1,) * (vectors.ndim - 2), vectors.shape[-1])
        sequences = vectors.shape[0] // self.cosines.shape[1]
        cosines, sines = (
            table.expand(sequences, -1, -1).reshape(shape) for table in (self.cosines, self.sines)
        )
        return vectors * cosines + (vectors * sines) @ self.quarter.T

    def matrices(self) -> Float[Tensor, "#B L K K"]:
        """Build R_j as matrices that row vectors are multiplied with."""
        return self.cosines.diag_embed() + self.quarter * self.sines[..., None, :]
