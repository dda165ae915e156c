"""Activations (GELU, SiLU, tanh) with first and second derivatives in closed form.

Autograd splits tanh-GELU into eight elementwise operations, and one Hessian-vector product passes
over the hidden layer about twenty times. Here f'(x) and g f''(x) are computed once and saved, and a
product takes three passes.

Letters: y = f(x), g the cotangent of y, v the cotangent of g f'(x).
"""

import abc
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import Function

from hessblocks.curvature.closed.watch import note_derivative
from hessblocks.errors import RunError

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715
"""Coefficient in the tanh form of GELU (Hendrycks and Gimpel 2016)."""

_FAR = 1e3
"""Beyond ±this argument f'' is 0. Larger arguments are clamped, since their powers would overflow
and inf · 0 is NaN."""

Values = Float[Tensor, "*shape"]
"""Tensor of any shape; all `Values` in a signature have the same shape."""


class ActivationCurve(abc.ABC):
    """Elementwise function f, twice differentiable."""

    def __call__(self, x: Values) -> Values:
        """Compute f(x)."""
        y: Tensor = _Pointwise.apply(x, self)[0]
        return y

    @abc.abstractmethod
    def value_and_slope(self, x: Values) -> tuple[Values, Values]:
        """Compute f(x) and f'(x)."""

    @abc.abstractmethod
    def bend(self, x: Values) -> Values:
        """Compute f''(x) in a new tensor."""


class Tanh(ActivationCurve):
    """Hyperbolic tangent."""

    def value_and_slope(self, x: Values) -> tuple[Values, Values]:
        """See `ActivationCurve`."""
        y = x.tanh()
        return y, 1 - y * y

    def bend(self, x: Values) -> Values:
        """See `ActivationCurve`."""
        y = x.tanh()
        return (y * y).sub_(1).mul_(y).mul_(2)


class TanhGelu(ActivationCurve):
    """½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))."""

    def value_and_slope(self, x: Values) -> tuple[Values, Values]:
        """See `ActivationCurve`."""
        t, inner = self._tanh(x)
        y = (t + 1).mul_(x).mul_(0.5)
        slope = (t * t).neg_().add_(1).mul_(inner).mul_(x).add_(t).add_(1).mul_(0.5)
        return y, slope

    def bend(self, x: Values) -> Values:
        """See `ActivationCurve`; with t = tanh(u): (1 − t²) (u' + ½ x u'' − x t u'²)."""
        x = x.clamp(-_FAR, _FAR)
        t, inner = self._tanh(x)
        curved = (x * (3 * SQRT_2_OVER_PI * CUBIC)).sub_((inner * inner).mul_(t)).mul_(x)
        return curved.add_(inner).mul_((t * t).neg_().add_(1))

    @staticmethod
    def _tanh(x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute tanh(u) and u' with u = √(2/π) (x + 0.044715 x³)."""
        square = x * x
        t = (square * (SQRT_2_OVER_PI * CUBIC)).add_(SQRT_2_OVER_PI).mul_(x).tanh_()
        return t, square.mul_(3 * SQRT_2_OVER_PI * CUBIC).add_(SQRT_2_OVER_PI)


class Gelu(ActivationCurve):
    """x Φ(x) with Φ the normal distribution."""

    def value_and_slope(self, x: Values) -> tuple[Values, Values]:
        """See `ActivationCurve`."""
        share = (x * math.sqrt(0.5)).erf_().add_(1).mul_(0.5)
        return x * share, self._density(x).mul_(x).add_(share)

    def bend(self, x: Values) -> Values:
        """See `ActivationCurve`; (2 − x²) φ(x)."""
        return (x * x).neg_().add_(2).mul_(self._density(x))

    @staticmethod
    def _density(x: Tensor) -> Tensor:
        return (x * x).mul_(-0.5).exp_().mul_(math.sqrt(0.5 / math.pi))


class Silu(ActivationCurve):
    """x σ(b x) with σ the logistic function: SiLU for b = 1, quick GELU for b = 1.702."""

    def __init__(self, steepness: float = 1.0) -> None:
        """Fix b."""
        self._steepness = steepness

    def value_and_slope(self, x: Values) -> tuple[Values, Values]:
        """See `ActivationCurve`; s (1 + b x (1 − s))."""
        s = (x * self._steepness).sigmoid_()
        return x * s, (1 - s).mul_(x).mul_(self._steepness).add_(1).mul_(s)

    def bend(self, x: Values) -> Values:
        """See `ActivationCurve`; b s (1 − s) (2 + b x (1 − 2 s))."""
        s = (x * self._steepness).sigmoid_()
        curved = (s * -2).add_(1).mul_(x).mul_(self._steepness).add_(2)
        return curved.mul_(s).mul_(1 - s).mul_(self._steepness)


class _Pointwise(Function):
    """y = f(x), and f'(x)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, curve: ActivationCurve) -> tuple[Tensor, Tensor]:
        return curve.value_and_slope(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.curve = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None]:
        x, slope = ctx.saved_tensors
        g = _alone(cotangents)
        if g is None:
            return None, None
        if not torch.is_grad_enabled():
            return g * slope, None
        note_derivative()
        return _PointwiseBackward.apply(g, x, slope, ctx.curve)[0], None


class _PointwiseBackward(Function):
    """g f'(x) as a function of g and x, and g f''(x)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        g: Tensor, x: Tensor, slope: Tensor, curve: ActivationCurve
    ) -> tuple[Tensor, Tensor]:
        return g * slope, curve.bend(x) * g

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[2], output[1])

    @staticmethod
    def backward(
        ctx: Any, *cotangents: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        slope, bent = ctx.saved_tensors
        v = _alone(cotangents)
        return (None, None, None, None) if v is None else (v * slope, v * bent, None, None)


def _alone(cotangents: tuple[Tensor | None, ...]) -> Tensor | None:
    """Return the first cotangent; the second output is an internal derivative and has none."""
    if any(cotangent is not None for cotangent in cotangents[1:]):
        raise RunError(
            "model: third derivatives are not supported inside hessblocks' products "
            "(once_differentiable); differentiate the model itself"
        )
    return cotangents[0]
