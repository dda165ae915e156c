"""Layer norm and RMS norm with their second derivatives in closed form.

Letters: n = (x − mean) s the normalised row, s = 1/σ; w the weight; g the cotangent of
y = w n + b; h = w g; C subtracts the mean; D width. RMS norm has no mean, and C is the identity.

The Jacobian of n by x is one symmetric matrix per row, A = s (C − n nᵀ / D):
ḡ_x = A h, ḡ_w = Σ g n, ḡ_b = Σ g.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from hessblocks.curvature.closed.watch import note_derivative


def layer_norm(
    x: Float[Tensor, "*shape"],
    shape: Sequence[int],
    weight: Float[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*shape"]:
    """Compute `torch.nn.functional.layer_norm`, twice differentiable."""
    return _norm(x, shape, weight, bias, eps, centre=True)


def rms_norm(
    x: Float[Tensor, "*shape"],
    shape: Sequence[int],
    weight: Float[Tensor, "..."] | None = None,
    eps: float | None = None,
) -> Float[Tensor, "*shape"]:
    """Compute `torch.nn.functional.rms_norm`, twice differentiable."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _norm(x, shape, weight, None, eps, centre=False)


def _norm(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    centre: bool,
) -> Tensor:
    width = math.prod(shape)
    rows = x.reshape(-1, width)
    flat = None if weight is None else weight.reshape(width)
    shift = None if bias is None else bias.reshape(width)
    y: Tensor = _LayerNormForward.apply(rows, flat, shift, eps, centre)
    return y.view_as(x)


class _LayerNormForward(Function):
    """y of x, w and b."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centre: bool
    ) -> Tensor:
        n = x - x.mean(-1, keepdim=True) if centre else x.clone()
        s = _mean(n, n).add_(eps).rsqrt_()
        n.mul_(s)
        ctx.centre = centre
        ctx.save_for_backward(x, n, s, weight)
        y = n.clone() if weight is None else n * weight
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        x, n, s, weight = ctx.saved_tensors
        (g,) = cotangents
        if torch.is_grad_enabled():
            note_derivative()
            for_x, for_weight = _LayerNormBackward.apply(g, x, weight, n, s, ctx.centre)
        else:
            for_x = _across(g if weight is None else g * weight, n, s, centre=ctx.centre)
            for_weight = (g * n).sum(0) if ctx.needs_input_grad[1] else None
        return for_x, for_weight, g.sum(0) if ctx.needs_input_grad[2] else None, None, None


def _across(z: Tensor, n: Tensor, s: Tensor, *, centre: bool) -> Tensor:
    """Compute A z."""
    return torch.addcmul(_centred(z, centre=centre), n, _mean(n, z), value=-1).mul_(s)


def _centred(z: Tensor, *, centre: bool) -> Tensor:
    """Compute C z."""
    return z - z.mean(-1, keepdim=True) if centre else z


class _LayerNormBackward(Function):
    """ḡ_x = A h and ḡ_w = Σ g n as functions of g, x and w.

    Let v be the cotangent of A h, and a that of Σ g n. The cotangents are

        of g: w A v + a n      of w: Σ g A v      of x: A (a g) − s (n vᵀA h / D + m_h A v + m_v A
        h)

    where m_z is the mean of n z along the row. A (a g) = s (C a g − n m_ag), so that one pass over
    n suffices.
    """

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, weight: Tensor | None, n: Tensor, s: Tensor, centre: bool
    ) -> tuple[Tensor, Tensor | None]:
        h = g if weight is None else g * weight
        across = _across(h, n, s, centre=centre)
        ctx.centre = centre
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g, n, s, weight, across, _mean(n, h))
        return across, None if weight is None else (g * n).sum(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        g, n, s, weight, across, met = ctx.saved_tensors
        v, a = cotangents
        if v is None:
            return n * a, _across(g * a, n, s, centre=ctx.centre), None, None, None, None
        inner = _mean(n, v)
        pushed = torch.addcmul(_centred(v, centre=ctx.centre), n, inner, value=-1) * s
        for_g = pushed if weight is None else pushed * weight
        for_weight = None if weight is None else (g * pushed).sum(0)
        for_x, along = None, _mean(v, across)
        if a is not None:
            for_g = torch.addcmul(for_g, n, a)
            turned = g * a
            for_x, along = _centred(turned, centre=ctx.centre), along + _mean(n, turned)
        for_x = n * -along if for_x is None else torch.addcmul(for_x, n, along, value=-1)
        for_x = torch.addcmul(for_x, pushed, met, value=-1)
        for_x = torch.addcmul(for_x, across, inner, value=-1)
        return for_g, for_x * s, for_weight, None, None, None


def _mean(left: Tensor, right: Tensor) -> Tensor:
    """Compute the mean of left · right along each row, (rows, 1)."""
    inner: Tensor = torch.linalg.vecdot(left, right)
    return inner.div_(left.shape[-1])[:, None]
