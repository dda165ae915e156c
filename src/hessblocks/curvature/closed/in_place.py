"""Linear layers and embeddings that accumulate the gradient of their weight in place.

Autograd's gradient of an embedding is a dense table, mostly zeros: for 50,257 words of width 768,
150 MB written twice per product, though a batch looks up a few hundred rows.

Letters: y = x W + b with N rows, D inputs and E outputs per row; g the cotangent of y; (c, Z, z)
the cotangents of the gradients (g Wᵀ, xᵀ g, Σ g) by x, W and b; V rows of a table.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional as F  # noqa: N812

from hessblocks.curvature.closed.accumulate import sum_of, transformed, unread, wanted
from hessblocks.curvature.closed.softmax import DTYPES
from hessblocks.curvature.closed.watch import note_derivative


def linear(
    input: Float[Tensor, "*rows D"],
    weight: Float[Tensor, "E D"],
    bias: Float[Tensor, " E"] | None = None,
) -> Any:
    """Compute `torch.nn.functional.linear` with a parameter as its weight.

    Returns:
        (*rows, E), or NotImplemented, which makes the caller call torch.
    """
    if input.ndim < 2 or _other(input, weight, bias):
        return NotImplemented
    y: Tensor = _Linear.apply(input.reshape(-1, input.shape[-1]), weight, bias, True)
    return y.view(*input.shape[:-1], len(weight))


def addmm(
    input: Float[Tensor, "..."],
    mat1: Float[Tensor, "N D"],
    mat2: Float[Tensor, "D E"],
    *args: Any,
    **others: Any,
) -> Any:
    """Compute `torch.addmm` of a bias, rows and a parameter: GPT-2's linear layer.

    Returns:
        (N, E), or NotImplemented, which makes the caller call torch.
    """
    if args or others or input.ndim != 1 or _other(mat1, mat2, input):
        return NotImplemented
    return _Linear.apply(mat1, mat2, input, False)


def _other(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Tell whether the closed form does not support these arguments."""
    tensors = [x, weight] if bias is None else [x, weight, bias]
    plain = all(type(t) in (Tensor, torch.nn.Parameter) and t.dtype == x.dtype for t in tensors)
    is_parameter = plain and weight.ndim == 2 and weight.is_leaf and weight.requires_grad
    fits = is_parameter and x.dtype in DTYPES and x.numel() > 0 and (bias is None or bias.ndim == 1)
    return not fits or torch.is_autocast_enabled(x.device.type) or transformed()


class _Linear(Function):
    """y as a function of x, W and b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, turned: bool) -> Tensor:
        ctx.keys, ctx.turned = (id(weight), id(bias)), turned
        ctx.save_for_backward(x, weight)
        W = weight.T if turned else weight
        return x @ W if bias is None else torch.addmm(bias, x, W)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (g,) = cotangents
        if torch.is_grad_enabled():
            note_derivative()
            biased = ctx.needs_input_grad[2]
            return *_LinearBackward.apply(g, x, weight, ctx.keys, ctx.turned, biased), None
        W = weight.T if ctx.turned else weight
        for_x = g @ W.T if ctx.needs_input_grad[0] else None
        for_bias = g.sum(0) if ctx.needs_input_grad[2] and wanted(ctx.keys[1]) else None
        return for_x, _share(ctx.keys[0], x, g, turned=ctx.turned), for_bias, None


class _LinearBackward(Function):
    """(g Wᵀ, xᵀ g, Σ g) as functions of g, x and W.

    Their cotangents (c, Z, z) give the cotangents c W + x Z + z of g, g Zᵀ of x and cᵀ g of W.
    """

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, weight: Tensor, keys: Any, turned: bool, biased: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.keys, ctx.turned = keys, turned
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g, x, weight)
        W = weight.T if turned else weight
        product = _product(x, g, turned=turned) if wanted(keys[0]) else unread(weight)
        for_bias = (g.sum(0) if wanted(keys[1]) else unread(g, g.shape[-1])) if biased else None
        return g @ W.T, product, for_bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        g, x, weight = ctx.saved_tensors
        c, along, z = cotangents
        W = weight.T if ctx.turned else weight
        for_g = for_x = for_weight = None
        if c is not None:
            for_g = c @ W if ctx.needs_input_grad[0] else None
            for_weight = _share(ctx.keys[0], c, g, turned=ctx.turned)
        if along is not None:
            Z = along.T if ctx.turned else along
            for_x = g @ Z.T if ctx.needs_input_grad[1] else None
            if for_g is None or transformed():
                for_g = x @ Z if for_g is None else for_g + x @ Z
            else:
                for_g.addmm_(x, Z)
        if z is not None:
            for_g = (
                z.expand_as(g) if for_g is None else for_g + z if transformed() else for_g.add_(z)
            )
        return for_g, for_x, for_weight, None, None, None


def _share(key: int, rows: Tensor, cotangents: Tensor, *, turned: bool) -> Tensor | None:
    """Compute rowsᵀ cotangents for W; None if it was added to W's sum or is not needed."""
    if not wanted(key):
        return None
    if (total := sum_of(key)) is None:
        return _product(rows, cotangents, turned=turned)
    left, right = (cotangents, rows) if turned else (rows, cotangents)
    total.add_product(left.T, right)
    return None


def _product(rows: Tensor, cotangents: Tensor, *, turned: bool) -> Tensor:
    return cotangents.mT @ rows if turned else rows.mT @ cotangents


def embedding(
    input: Int[Tensor, "*shape"],
    weight: Float[Tensor, "V D"],
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Compute `torch.nn.functional.embedding` of a parameter in float32 or float64.

    Args:
        input: row indices.
        weight: the table.
        padding_idx: index of the row without a gradient; a negative one counts from the end.
        max_norm: unless None, NotImplemented is returned.
        norm_type: type of `max_norm`.
        scale_grad_by_freq: if True, NotImplemented is returned.
        sparse: ignored, since autograd cannot differentiate sparse gradients again.

    Returns:
        (*shape, D), or NotImplemented, which makes the caller call torch.
    """
    renormalises = max_norm is not None or scale_grad_by_freq
    unusual = not weight.is_leaf or weight.ndim != 2 or weight.dtype not in DTYPES
    padding_fits = padding_idx is None or -len(weight) <= padding_idx < len(weight)
    if renormalises or unusual or not padding_fits or transformed():
        if not sparse:
            return NotImplemented
        return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    padding = -1 if padding_idx is None else padding_idx % len(weight)
    return _Lookup.apply(weight, input, padding)


class _Lookup(Function):
    """Rows of the table."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.key, ctx.size, ctx.padding = id(table), len(table), padding
        return torch.embedding(table, rows)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, None, None]:
        (rows,), (values,) = ctx.saved_tensors, cotangents
        if torch.is_grad_enabled():
            note_derivative()
            return _Scatter.apply(values, rows, ctx.size, ctx.padding, ctx.key), None, None
        if (total := sum_of(ctx.key)) is not None:
            flat, values = rows.flatten(), values.reshape(-1, values.shape[-1])
            if ctx.padding >= 0:
                values = values.masked_fill((flat == ctx.padding)[:, None], 0)
            total.add_rows(flat, values)
            return None, None, None
        if not wanted(ctx.key):
            return None, None, None
        return _scattered(values, rows, ctx.size, ctx.padding), None, None


class _Scatter(Function):
    """Gradient of the table as a function of the rows' cotangents."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, rows: Tensor, size: int, padding: int, key: int
    ) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.padding = padding
        if not wanted(key):
            return unread(values, size, values.shape[-1])
        return _scattered(values, rows, size, padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (rows,), (along,) = ctx.saved_tensors, cotangents
        gradient = along[rows]
        if ctx.padding >= 0:
            gradient = gradient.masked_fill((rows == ctx.padding)[..., None], 0)
        return gradient, None, None, None, None


def _scattered(values: Tensor, rows: Tensor, size: int, padding: int) -> Tensor:
    gradient: Tensor = torch.ops.aten.embedding_dense_backward(values, rows, size, padding, False)
    return gradient
