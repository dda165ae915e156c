"""Derivatives of LayerNorm and RMSNorm, first and second, in closed form.

With C = I − 11ᵀ/D for layer norm and C = I for root mean squares, σ² = ‖Cx‖²/D + ε and y = Cx/σ:

    ∂y_a/∂x_b = (C_ab − y_a y_b/D) / σ
    ∂²y_a/∂x_b∂x_c = −(C_ab y_c + C_ac y_b + C_bc y_a − 3 y_a y_b y_c/D) / (D σ²)

Both shrink as the input grows, by 1/σ and 1/σ². So a norm in front of a block tames the growth of
its Hessian with the data (Hessian paper, section 4.3). A gain γ multiplies both by γ_a.

Letters: D entries of a vector.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True, eq=False)
class NormDerivatives:
    """LayerNorm or RMSNorm of each vector, and its derivatives.

    `second` takes D³ numbers per vector, `second_along` D².
    """

    output: Float[Tensor, "*rows D"]
    """y."""
    deviation: Float[Tensor, "*rows 1"]
    """σ, with ε."""
    centred: bool
    """Whether the mean is subtracted, as in LayerNorm."""

    @cached_property
    def first(self) -> Float[Tensor, "*rows D D"]:
        """First derivative ∂y_a/∂x_b, symmetric."""
        y = self.output
        return (self._projection - self._pairs / y.shape[-1]) / self.deviation[..., None]

    @cached_property
    def second(self) -> Float[Tensor, "*rows D D D"]:
        """Second derivative ∂²y_a/∂x_b∂x_c, symmetric in all three."""
        y, width = self.output, self.output.shape[-1]
        once = self._projection[..., None] * y[..., None, None, :]
        thrice = self._pairs[..., None] * y[..., None, None, :]
        total = once + once.transpose(-1, -2) + once.transpose(-1, -3) - 3 * thrice / width
        return -total / (width * self.deviation[..., None, None].square())

    def second_along(self, direction: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D D"]:
        """Contract the second derivative: Σ_a u_a ∂²y_a/∂x_b∂x_c.

        Args:
            direction: u of each vector, such as the loss gradient at the output.

        Returns:
            One symmetric matrix per vector.
        """
        y, width = self.output, self.output.shape[-1]
        u = direction @ self._projection
        once = u[..., :, None] * y[..., None, :]
        along = (direction * y).sum(-1)[..., None, None]
        total = once + once.mT + along * (self._projection - 3 * self._pairs / width)
        return -total / (width * self.deviation[..., None].square())

    @property
    def _projection(self) -> Tensor:
        width = self.output.shape[-1]
        unit = torch.eye(width, dtype=self.output.dtype, device=self.output.device)
        return unit - 1 / width if self.centred else unit

    @property
    def _pairs(self) -> Tensor:
        return self.output[..., :, None] * self.output[..., None, :]


def norm_derivatives(
    x: Shaped[Tensor, "*rows D"], *, eps: float = 1e-5, centred: bool = True
) -> NormDerivatives:
    """Differentiate LayerNorm without gain and shift, or RMSNorm.

    Args:
        x: vectors along the last axis.
        eps: added to the variance or mean square, at least 0.
        centred: True for LayerNorm, False for RMSNorm.

    Returns:
        Output and derivatives of each vector.

    Raises:
        ArgumentError: no floating-point vectors, an eps below 0, or a zero (centred) vector with
            eps 0.

    Cost: D² multiplications per vector for `first` and `second_along`, D³ for `second`.

    Source: docs/theory.md; Hessian paper, appendix on layer norm.
    """
    if not x.is_floating_point():
        raise ArgumentError(f"x: expected floating-point vectors, got {x.dtype}")
    if not eps >= 0:  # nan too
        raise ArgumentError(f"eps: expected a number of at least 0, got {eps}")
    moved = x - x.mean(-1, keepdim=True) if centred else x
    deviation = (moved.square().mean(-1, keepdim=True) + eps).sqrt()
    if not bool((deviation > 0).all()):
        raise ArgumentError(
            "x: with eps=0 the norm of a constant vector is undefined; give an eps above 0"
        )
    return NormDerivatives(output=moved / deviation, deviation=deviation, centred=centred)
