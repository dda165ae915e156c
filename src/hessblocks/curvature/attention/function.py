"""Attention as an autograd Function: forward, backward, double backward, tangents (jvp), vmap.

Letters: B sequences, H heads, G key heads, T queries, S keys, D head width, V value width, K
vectors; a, b, c, d the tangents of queries, keys, values and sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

from hessblocks.curvature.attention.tangents import Rows, Vectors, push_forward
from hessblocks.curvature.attention.tiles import Heads, attend, pull_back
from hessblocks.curvature.attention.visibility import Visibility
from hessblocks.errors import RunError

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attention(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B G S D"],
    value: Float[Tensor, "B G S V"],
    sink: Float[Tensor, "#B H"] | None,
    visibility: Visibility,
) -> Float[Tensor, "B H T V"]:
    """Compute O, with two derivatives by queries, keys, values and sinks."""
    out: Tensor = _Attention.apply(query, key, value, sink, visibility)[0]
    return out


def _heads(query: Tensor, key: Tensor, value: Tensor, visibility: Visibility) -> Heads:
    groups = key.shape[1]
    return Heads(_rows(query, groups), key.flatten(0, 1), value.flatten(0, 1), visibility, groups)


def _rows(x: Tensor, groups: int, first: int = 0) -> Tensor:
    """(B, H, T, ...) as (N, R, T, ...), behind `first` further axes."""
    paired: Tensor = x.unflatten(first + 1, (groups, -1)).flatten(first, first + 1)
    return paired


def _fused(query: Tensor, value: Tensor, visibility: Visibility) -> bool:
    """Tell whether torch's kernel for CPUs does it: the products alone make the scores."""
    return query.device.type == "cpu" and visibility.plain and query.shape[-1] == value.shape[-1]


class _Attention(Function):
    """O of queries, keys, values and sinks; also the log-sum-exp as two numbers, for itself."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, visibility: Visibility
    ) -> tuple[Tensor, Tensor, Tensor]:
        if _fused(query, value, visibility):
            out, top = _flash(query, key, value, 0.0, visibility.causal, scale=visibility.scale)
            rest = torch.zeros_like(top)
        else:
            out, top, rest = (
                t.reshape(*query.shape[:3], *t.shape[3:])
                for t in attend(_heads(query, key, value, visibility))
            )
        if sink is not None:
            sums = torch.logaddexp(top + rest, sink[..., None])
            # a sink takes its share of the softmax, and adds nothing to O
            out.mul_((top + rest - sums).exp_()[..., None])
            return out, sums, torch.zeros_like(rest)
        # a query that sees no key: exp(S − ∞) = 0 where exp(−∞ + ∞) would be NaN
        return out, top.masked_fill_(top == -torch.inf, torch.inf), rest

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, visibility = inputs
        ctx.visibility = visibility
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output)
        _keep_for_tangents(ctx, *tensors, *output[1:])  # with the output it would hold itself

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        g = cotangents[0]
        if g is None:
            return None, None, None, None, None
        if torch.is_grad_enabled() and ctx.visibility.noticed is not None:
            ctx.visibility.noticed()
        return (*_Pullback.apply(g, *ctx.saved_tensors, ctx.visibility), None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None, None]:
        query, key, value, sink, top, rest = ctx.saved_tensors
        moved = _several(tangents[:4])
        kept = (None, query, key, value, sink, None, top, rest)
        found = _Tangent.apply(*moved, *kept, ctx.visibility, (False,) * 3)
        return found[0][0], None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        return _folded(_Attention, info.batch_size, dims, inputs, tensors=4)


class _Pullback(Function):
    """q̄, k̄, v̄ and the sinks' gradient, as functions of G, queries, keys, values and sinks."""

    @staticmethod
    def forward(
        g: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink: Tensor | None,
        out: Tensor,
        top: Tensor,
        rest: Tensor,
        visibility: Visibility,
    ) -> tuple[Tensor | None, ...]:
        groups = key.shape[1]
        met = (g * out).sum(-1)
        for_sink = None
        if sink is not None:
            for_sink = -(met * (sink[..., None] - top).exp_()).sum(-1).sum_to_size(sink.shape)
        if _fused(query, value, visibility) and sink is None:
            found = _flash_backward(
                g, query, key, value, out, top, 0.0, visibility.causal, scale=visibility.scale
            )
        else:
            heads = _heads(query, key, value, visibility)
            found = pull_back(heads, *(_rows(t, groups) for t in (g, met, top, rest)))
        likes = (query, key, value)
        shaped = (t.reshape(like.shape) for t, like in zip(found, likes, strict=True))
        return (*shaped, for_sink)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, visibility = inputs
        ctx.visibility = visibility
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        _keep_for_tangents(ctx, *tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        if all(one is None for one in cotangents):
            return (None,) * 9
        wanted = ctx.needs_input_grad[1:4]
        several, alone = _unbatched(cotangents)
        pushed = _Tangent.apply(*several, *ctx.saved_tensors, ctx.visibility, wanted)
        return (*(None if t is None else alone(t) for t in pushed), None, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        g, *moved = tangents[:5]
        _, *others = ctx.saved_tensors
        found: list[Tensor | None] = [None] * 4
        if any(one is not None for one in moved):
            pushed = _Tangent.apply(
                *_several(moved), *ctx.saved_tensors, ctx.visibility, (True,) * 3
            )
            found = [None if t is None else t[0] for t in pushed[1:]]
        if g is not None:
            straight = _Pullback.apply(g, *others, ctx.visibility)
            found = [
                one if other is None else other if one is None else one + other
                for one, other in zip(found, straight, strict=True)
            ]
        return tuple(found)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        return _folded(_Pullback, info.batch_size, dims, inputs, tensors=8)


class _Tangent(Function):
    """Ȯ and, with G, the tangents of q̄, k̄, v̄ and the sinks' gradient, K of each in front."""

    @staticmethod
    def forward(
        a: Tensor | None,
        b: Tensor | None,
        c: Tensor | None,
        d: Tensor | None,
        g: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink: Tensor | None,
        out: Tensor | None,
        top: Tensor,
        rest: Tensor,
        visibility: Visibility,
        wanted: tuple[bool, ...],
    ) -> tuple[Tensor | None, ...]:
        groups = key.shape[1]
        vectors = next(len(t) for t in (a, b, c, d) if t is not None)
        heads = _heads(query, key, value, visibility)
        met = None if g is None or out is None else (g * out).sum(-1)
        own = None if sink is None else (sink[..., None] - top).exp_()
        kept = Rows(
            _rows(top, groups),
            _rows(rest, groups),
            *(None if t is None else _rows(t, groups) for t in (g, met, own)),
        )
        each = None if d is None else d[..., None].expand(vectors, *top.shape)
        tangents = Vectors(
            None if a is None else _rows(a, groups, 1),
            None if b is None else b.flatten(1, 2),
            None if c is None else c.flatten(1, 2),
            None if each is None else _rows(each, groups, 1),
        )
        found = push_forward(heads, kept, tangents, vectors, wanted)
        likes = (found.out, found.query, found.key, found.value)
        shapes = ((*query.shape[:3], value.shape[-1]), query.shape, key.shape, value.shape)
        moved = [
            None if t is None else t.reshape(vectors, *shape)
            for t, shape in zip(likes, shapes, strict=True)
        ]
        return (*moved, _of_sink(found, moved[0], d, g, met, own, sink))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise RunError(
            "second_order_attention: it has two derivatives, and a third was asked for "
            "(once_differentiable); use torch.nn.functional.scaled_dot_product_attention under "
            "sdpa_kernel(SDPBackend.MATH)"
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        if any(one is not None for one in dims[4:12]):
            return _folded(_Tangent, info.batch_size, dims, inputs, tensors=12, led=4)
        several = [
            None if t is None else _in_front(t, dim, info.batch_size)
            for t, dim in zip(inputs[:4], dims, strict=False)
        ]
        vectors = next(t.shape[:2] for t in several if t is not None)
        together = [None if t is None else t.flatten(0, 1) for t in several]
        found = _Tangent.apply(*together, *inputs[4:])
        outputs = tuple(None if t is None else t.unflatten(0, vectors) for t in found)
        return outputs, tuple(None if t is None else 0 for t in outputs)


def _of_sink(
    found: Vectors,
    out: Tensor | None,
    d: Tensor | None,
    g: Tensor | None,
    met: Tensor | None,
    own: Tensor | None,
    sink: Tensor | None,
) -> Tensor | None:
    """The tangent of the sinks' gradient −Σ P δ over rows: −Σ (Ṗ δ + P δ̇) with Ṗ = P (d − ρ)."""
    if sink is None or g is None or met is None or own is None or out is None:
        return None
    assert found.sink is not None
    moved = -found.sink.reshape(len(out), *met.shape)
    if d is not None:
        moved = moved + d[..., None]
    each = own * (moved * met + (g * out).sum(-1))
    return -each.sum(-1).sum_to_size(len(out), *sink.shape)


def _keep_for_tangents(ctx: Any, *tensors: Tensor | None) -> None:
    """Keep them where forward derivatives are taken; autograd would not free them with its own."""
    if forward_ad._current_level >= 0:
        ctx.save_for_forward(*tensors)


def _several(tangents: Any) -> list[Tensor | None]:
    """One of each as K = 1 of each."""
    return [None if t is None else t[None] for t in tangents]


def _unbatched(cotangents: Any) -> tuple[list[Tensor | None], Callable[[Tensor], Tensor]]:
    """Vectors with their K in front, and what takes it away again.

    `is_grads_batched` is an older vmap of torch's, which knows no functions of one's own; else K =
    1.

    Returns:
        The vectors, and the function for each result.
    """
    legacy = torch._C._functorch.is_legacy_batchedtensor
    if not any(t is not None and legacy(t) for t in cotangents):
        return _several(cotangents), lambda t: t[0]
    # the level of this vmap is told by going one deeper and back, and by nothing else
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    whole = [
        t if t is None or not legacy(t) else torch._remove_batch_dim(t, level, 0, 0)
        for t in cotangents
    ]
    size = next(
        len(one) for one, t in zip(whole, cotangents, strict=True) if t is not None and legacy(t)
    )
    several = [
        one if t is None or legacy(t) else t.expand(size, *t.shape)
        for one, t in zip(whole, cotangents, strict=True)
    ]
    return several, lambda t: torch._add_batch_dim(t, 0, level)


def _in_front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _folded(
    function: Any,
    size: int,
    dims: Sequence[int | None],
    inputs: Sequence[Any],
    *,
    tensors: int,
    led: int = 0,
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """Fold a vmapped axis into B, which stands behind K in the first `led` tensors."""
    given, others = inputs[:tensors], inputs[tensors:]
    whole = [
        None if t is None else _in_front(t, dim, size) for t, dim in zip(given, dims, strict=False)
    ]
    query = 5 if led else 1 if function is _Pullback else 0
    found_query = whole[query]
    assert found_query is not None
    sequences = found_query.shape[1]
    joined = []
    for number, t in enumerate(whole):
        axis = 1 if number < led else 0
        if t is not None:
            t = t.movedim(0, axis)
            shape = list(t.shape)
            shape[axis + 1] = sequences  # sinks are shared by all
            t = t.expand(shape).flatten(axis, axis + 1)
        joined.append(t)
    axis = 1 if led else 0
    found = [
        None if t is None else t.unflatten(axis, (size, sequences)).movedim(axis, 0)
        for t in function.apply(*joined, *others)
    ]
    sink = given[query + 3]
    if function is not _Attention and found[-1] is not None and sink is not None:
        own = whole[query + 3]
        if own is not None and own.shape[1] == 1:
            found[-1] = found[-1].sum(axis + 1, keepdim=True)
    return tuple(found), tuple(None if t is None else 0 for t in found)
