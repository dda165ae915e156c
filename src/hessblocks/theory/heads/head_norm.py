"""Query-key norm: a norm over the entries of each head's queries or keys, before the scores.

Letters: N vectors, K entries of a vector, P parameters of the norm, S = K + P.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
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
        """Try the function on vectors of so many entries.

        Args:
            width: K.

        Raises:
            ArgumentError: parameters that are not one vector; a function that does not map a vector
                to one as long, of the same dtype, or that cannot be differentiated or mapped over
                vectors.
        """
        if self.parameters.ndim != 1:
            raise ArgumentError(
                f"its parameters: expected one vector, got {tuple(self.parameters.shape)}; "
                "flatten them"
            )
        # not the zero vector, at which a norm has no derivative
        vectors = torch.linspace(-1, 2, 2 * width).to(self.parameters).view(2, width)
        try:
            found, slope = self.output(vectors), self.slope(vectors)
        except Exception as error:  # whatever a foreign function raises
            raise ArgumentError(
                f"it does not work on vectors of {width} entries with {len(self.parameters)} "
                f"parameters ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
            ) from error
        if found.dtype != vectors.dtype or slope.dtype != vectors.dtype:
            raise ArgumentError(f"it gives {found.dtype}, expected {vectors.dtype}")

    def output(self, vectors: Float[Tensor, "*N K"]) -> Float[Tensor, "*N K"]:
        """Norm the vectors, each in its place."""
        flat = vectors.flatten(0, -2)
        return vmap(self.function, in_dims=(0, None))(flat, self.parameters).view_as(vectors)

    def slope(self, vectors: Float[Tensor, "N K"]) -> Float[Tensor, "N K S"]:
        """Differentiate the output in the vector, and behind it in the parameters."""
        found = vmap(jacrev(self.function, argnums=(0, 1)), in_dims=(0, None))
        return torch.cat(found(vectors, self.parameters), dim=-1)

    def curvature(
        self, vectors: Float[Tensor, "N K"], along: Float[Tensor, "N K"]
    ) -> Float[Tensor, "N S S"]:
        """Differentiate along · output twice, in vector and parameters together."""

        def bent(both: Tensor, direction: Tensor) -> Tensor:
            def value(both: Tensor) -> Tensor:
                vector, parameters = both.split([vectors.shape[-1], len(self.parameters)])
                return (direction * self.function(vector, parameters)).sum()

            found: Tensor = jacrev(grad(value))(both)
            return found

        parameters = self.parameters.expand(len(vectors), -1)
        return vmap(bent)(torch.cat([vectors, parameters], dim=-1), along)
