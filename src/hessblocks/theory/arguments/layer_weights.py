"""The layer from the weights that a user hands to `attention_hessian`, checked.

Letters: B sequences, L tokens, D width, H heads, G key-value heads, K query-key width, V value width,
O output width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.theory.arguments.validation import check_gains, check_mask, check_tensor
from hessblocks.theory.layer import AttentionLayer


def checked_layer(
    x: Float[Tensor, "B L D"],
    w_query: Float[Tensor, "... D K"],
    w_key: Float[Tensor, "... D K"] | None,
    w_value: Float[Tensor, "... D V"] | None,
    w_projection: Float[Tensor, "... V O"] | None,
    query_key: str,
    gains: Sequence[Float[Tensor, "..."] | float] | None,
    mask: str | Bool[Tensor, "... L L"] | None,
    scores: str,
    memory_limit: int,
) -> AttentionLayer:
    """The layer, its weights stacked by head; see `attention_hessian` for the arguments.

    Returns:
        The layer, whose `parameters` are the given weights and gains.

    Raises:
        ArgumentError: weights, mask or gains that do not fit.
    """
    width = x.shape[2]
    one_matrix = query_key == "one-matrix"
    query = check_weight("w_query", w_query, width, x)
    heads = query.shape[0]
    key = _check_key(query, w_key, x, one_matrix=one_matrix)
    value = _value_or_identity(w_value, heads, x)
    projection = _projection_or_identity(w_projection, heads, value.shape[2], x)
    gain_tensors = check_gains(gains, heads, x)
    _check_scores(x, query, key)
    optional = (("key", w_key), ("value", w_value), ("projection", w_projection))
    return AttentionLayer(
        x=x,
        query=query,
        key=key,
        value=value,
        projection=projection,
        permitted=check_mask(mask, x.shape[0], x),
        scale=1.0 if one_matrix else query.shape[2] ** -0.5,
        softmax=scores == "softmax",
        gains=gain_tensors,
        parameters=(
            "query_key" if one_matrix else "query",
            *(name for name, weight in optional if weight is not None),
            *gain_tensors,
        ),
        memory_limit=memory_limit,
    )


def _check_key(
    query: Tensor, w_key: Tensor | None, x: Tensor, *, one_matrix: bool
) -> Tensor | None:
    """W_K as (G, D, K), or None with one matrix."""
    heads, width, head_width = query.shape
    if one_matrix:
        if w_key is not None:
            raise ArgumentError("w_key: expected None with query_key='one-matrix', got a tensor")
        if head_width != width:
            raise ArgumentError(
                f"w_query: expected (width, width) = ({width}, {width}) with query_key='one-matrix', "
                f"got ({width}, {head_width})"
            )
        return None
    if w_key is None:
        raise ArgumentError("w_key: expected a tensor with query_key='two-matrix', got None")
    key = check_weight("w_key", w_key, width, x)
    _check_heads("w_key", key, heads)
    if key.shape[2] != head_width:
        raise ArgumentError(
            f"w_key: expected (width, head width) = ({width}, {head_width}) as w_query has, "
            f"got {tuple(w_key.shape)}"
        )
    return key


def _check_scores(x: Tensor, query: Tensor, key: Tensor | None) -> None:
    """Raise an ArgumentError where finite inputs and weights are so large that scores may overflow."""
    width = x.shape[2]
    sides = (query, torch.eye(width, dtype=x.dtype, device=x.device)[None] if key is None else key)
    longest = [float((x.flatten(0, 1) @ side).norm(dim=-1).amax()) for side in sides]
    if not longest[0] * longest[1] <= torch.finfo(x.dtype).max:
        raise ArgumentError(
            f"x, w_query, w_key: the scores overflow {x.dtype} (largest entry of x: {float(x.abs().amax()):.0e}); "
            "scale the input or the weights down"
        )


def _value_or_identity(w_value: Tensor | None, heads: int, x: Tensor) -> Tensor:
    """W_V as (G, D, V); for identity values the column blocks of the identity."""
    width = x.shape[2]
    if w_value is not None:
        value = check_weight("w_value", w_value, width, x)
        _check_heads("w_value", value, heads)
        return value
    if width % heads:
        raise ArgumentError(
            f"w_value: identity values need a width divisible by the heads, got width {width} and {heads} heads"
        )
    identity = torch.eye(width, dtype=x.dtype, device=x.device)
    return identity.view(width, heads, -1).transpose(0, 1)


def _projection_or_identity(
    w_projection: Tensor | None, heads: int, value_width: int, x: Tensor
) -> Tensor:
    """W_O as (H, V, O); without projection the row blocks of the identity."""
    if w_projection is None:
        identity = torch.eye(heads * value_width, dtype=x.dtype, device=x.device)
        return identity.view(heads, value_width, -1)
    projection = check_weight("w_projection", w_projection, value_width, x)
    if projection.shape[0] != heads:
        raise ArgumentError(
            f"w_projection: expected one (value width, out) matrix for each of the {heads} heads, "
            f"got {tuple(w_projection.shape)}; use w_projection.view(heads, value_width, out)"
        )
    return projection


def _check_heads(name: str, weight: Tensor, heads: int) -> None:
    if heads % weight.shape[0]:
        raise ArgumentError(
            f"{name}: expected {heads} heads as w_query has, or a divisor of that, got {weight.shape[0]}"
        )


def check_weight(
    name: str,
    weight: Float[Tensor, "... rows columns"],
    rows: int | None,
    like: Float[Tensor, "..."],
) -> Float[Tensor, "heads rows columns"]:
    """A weight as (heads, rows, columns).

    Args:
        name: of the argument.
        weight: (rows, columns) for one head, or (heads, rows, columns).
        rows: expected rows, or None for any.
        like: the input.

    Returns:
        The weight without graph, one head more axis where there was none.

    Raises:
        ArgumentError: wrong kind, dtype, device, shape, or entries that are not finite.
    """
    weight = check_tensor(name, weight, like)
    if weight.ndim not in (2, 3) or weight.numel() == 0:
        raise ArgumentError(
            f"{name}: expected (in, out) or (heads, in, out), none of them 0, got {tuple(weight.shape)}"
        )
    if rows is not None and weight.shape[-2] != rows:
        hint = f"; did you mean {name}.mT?" if weight.shape[-1] == rows else ""
        raise ArgumentError(
            f"{name}: expected {rows} rows (x @ w convention), got shape {tuple(weight.shape)}{hint}"
        )
    return weight if weight.ndim == 3 else weight[None]
