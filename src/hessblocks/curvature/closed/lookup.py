"""Embedding lookup that accumulates the gradient of its table row by row.

Autograd writes a whole table of zeros for each lookup and adds whole tables up: of a vocabulary of
50,257 words and width 768, 150 MB twice a product, for some hundred rows.

Letters: V rows of the table, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import Function
from torch.nn import functional as F  # noqa: N812

from hessblocks.curvature.closed.accumulate import sum_of, transformed, wanted
from hessblocks.curvature.closed.softmax import DTYPES


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
        input: rows that are looked up.
        weight: the table.
        padding_idx: a row without a derivative; from the end where it is negative.
        max_norm: with one, the call is left to torch.
        norm_type: of `max_norm`.
        scale_grad_by_freq: the call is left to torch.
        sparse: without effect, since sparse gradients cannot be differentiated again.

    Returns:
        (*shape, D); NotImplemented where the call is left to torch.
    """
    asked = max_norm is not None or scale_grad_by_freq
    other = not weight.is_leaf or weight.ndim != 2 or weight.dtype not in DTYPES
    known = padding_idx is None or -len(weight) <= padding_idx < len(weight)
    if asked or other or not known or transformed():
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
        if (own := sum_of(ctx.key)) is not None:
            flat, values = rows.flatten(), values.reshape(-1, values.shape[-1])
            if ctx.padding >= 0:
                values = values.masked_fill((flat == ctx.padding)[:, None], 0)
            own.add_rows(flat, values)
            return None, None, None
        if not wanted(ctx.key):
            return None, None, None
        whole: Tensor = torch.ops.aten.embedding_dense_backward(
            values, rows, ctx.size, ctx.padding, False
        )
        return whole, None, None
