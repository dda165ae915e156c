"""Query-key norms and rotary positions (RoPE), which act between weights and scores.

A norm is over the entries of each head's queries or keys. Rotary positions then rotate pairs of
entries by angles that depend on the token's position: the score of tokens i and j is
s (R_i q_i)·(R_j k_j) (Su et al., 2021).

Letters: N vectors, K entries of a vector, P parameters of a norm, S = K + P; B sequences, L tokens,
I selected tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import grad, jacrev, vmap

from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadNorm:
    """Query-key norm: any differentiable function of a vector and parameters, shared by all heads.

    Source: Henry et al. (2020), query-key normalisation.
    """

    function: Callable[[Float[Tensor, " K"], Float[Tensor, " P"]], Float[Tensor, " K"]]
    """Function of a vector (K,) and the parameters (P,)."""
    parameters: Float[Tensor, "..."]
    """Trained parameters, flattened to (P,); none at all is allowed."""

    @classmethod
    def rms(cls, gain: Float[Tensor, " K"], eps: float = 1e-6) -> HeadNorm:
        """Build the RMS norm: v becomes gain · v / sqrt(mean(v²) + eps).

        Args:
            gain: the trained parameters.
            eps: above 0.

        Returns:
            The norm.

        Raises:
            ArgumentError: an eps that is not above 0.
        """
        if not isinstance(eps, int | float) or not eps > 0:
            raise ArgumentError(f"eps: expected a number above 0, got {eps}")
        return cls(
            function=lambda v, gain: gain * v * (v.square().mean() + eps).rsqrt(), parameters=gain
        )

    def check(self, width: int) -> None:
        """Test the function on vectors of `width` entries.

        Args:
            width: K.

        Raises:
            ArgumentError: the parameters are not one vector; or the function changes the length or
                dtype of a vector, or cannot be differentiated or vmapped.
        """
        if self.parameters.ndim != 1:
            raise ArgumentError(
                f"its parameters: expected one vector, got {tuple(self.parameters.shape)}; "
                "flatten them"
            )
        # not at the zero vector, where a norm has no derivative
        vectors = torch.linspace(-1, 2, 2 * width).to(self.parameters).view(2, width)
        try:
            output, slope = self.output(vectors), self.slope(vectors)
        except Exception as error:  # a user's function may raise any error
            raise ArgumentError(
                f"it does not work on vectors of {width} entries with {len(self.parameters)} "
                f"parameters ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
            ) from error
        if output.dtype != vectors.dtype or slope.dtype != vectors.dtype:
            raise ArgumentError(f"it gives {output.dtype}, expected {vectors.dtype}")

    def output(self, vectors: Float[Tensor, "*N K"]) -> Float[Tensor, "*N K"]:
        """Apply the norm to each vector."""
        flat = vectors.flatten(0, -2)
        return vmap(self.function, in_dims=(0, None))(flat, self.parameters).view_as(vectors)

    def slope(self, vectors: Float[Tensor, "N K"]) -> Float[Tensor, "N K S"]:
        """Compute the Jacobian by the vector and the parameters, concatenated along S."""
        jacobians = vmap(jacrev(self.function, argnums=(0, 1)), in_dims=(0, None))
        return torch.cat(jacobians(vectors, self.parameters), dim=-1)

    def curvature(
        self, vectors: Float[Tensor, "N K"], along: Float[Tensor, "N K"]
    ) -> Float[Tensor, "N S S"]:
        """Compute the Hessian of along · output by vector and parameters together."""

        def bent(both: Tensor, direction: Tensor) -> Tensor:
            def value(both: Tensor) -> Tensor:
                vector, parameters = both.split([vectors.shape[-1], len(self.parameters)])
                return (direction * self.function(vector, parameters)).sum()

            hessian: Tensor = jacrev(grad(value))(both)
            return hessian

        parameters = self.parameters.expand(len(vectors), -1)
        return vmap(bent)(torch.cat([vectors, parameters], dim=-1), along)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadRotation:
    """Rotation R_j v = cos_j ⊙ v + sin_j ⊙ (v Q) of row vectors v of token j."""

    cosines: Float[Tensor, "#B L K"]
    """1 where nothing turns."""
    sines: Float[Tensor, "#B L K"]
    """0 where nothing turns."""
    quarter: Float[Tensor, "K K"]
    """Q, which rotates a row vector by 90° in each pair."""

    @classmethod
    def of_halves(
        cls, cosines: Float[Tensor, "#B L turned"], sines: Float[Tensor, "#B L turned"], width: int
    ) -> HeadRotation:
        """Pair entries (i, i + half) of the first `turned` ones, as GPT-NeoX and Llama do.

        Args:
            cosines: cosines of the angles, equal for both entries of a pair.
            sines: sines of the angles, likewise.
            width: K, at least `turned`.

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

    def at(self, positions: Int[Tensor, " I"]) -> HeadRotation:
        """Restrict the rotation to some of the tokens."""
        cosines, sines = self.cosines[:, positions], self.sines[:, positions]
        return HeadRotation(cosines=cosines, sines=sines, quarter=self.quarter)

    def turn(self, vectors: Float[Tensor, "B L K"]) -> Float[Tensor, "B L K"]:
        """Turn the vectors, R_j v_j."""
        return vectors * self.cosines + (vectors @ self.quarter) * self.sines

    def turn_back(self, vectors: Float[Tensor, "I *rows K"]) -> Float[Tensor, "I *rows K"]:
        """Turn back, R_jᵀ v_j, any number of vectors per token (sequence by sequence)."""
        shape = (-1, *(1,) * (vectors.ndim - 2), vectors.shape[-1])
        sequences = vectors.shape[0] // self.cosines.shape[1]
        cosines, sines = (
            table.expand(sequences, -1, -1).reshape(shape) for table in (self.cosines, self.sines)
        )
        return vectors * cosines + (vectors * sines) @ self.quarter.T

    def matrices(self) -> Float[Tensor, "#B L K K"]:
        """Build the matrices R_j that row vectors are multiplied by."""
        return self.cosines.diag_embed() + self.quarter * self.sines[..., None, :]
