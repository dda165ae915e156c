"""Attention as an autograd Function: forward, backward, double backward, tangents (jvp), vmap.

Letters: B sequences, H heads, G key heads, T queries, S keys, D head width, V value width, K
vectors; L the log-sum-exp of a row's scores, which sinks need; a, b, c the tangents of queries,
keys and values.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

from hessblocks.curvature.attention.tangents import RowConstants, Tangents, push_forward
from hessblocks.curvature.attention.tiles import TiledHeads, Visibility, attend, pull_back
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
    out: Tensor
    out, total, *_ = _SoftmaxAttention.apply(query, key, value, visibility)
    if sink is None:
        return out
    # a sink adds to the softmax's denominator, not to O's numerator
    mixed: Tensor = out * (total - sink[..., None]).sigmoid()[..., None]
    return mixed


def _heads(query: Tensor, key: Tensor, value: Tensor, visibility: Visibility) -> TiledHeads:
    groups = key.shape[1]
    return TiledHeads(
        _rows(query, groups), key.flatten(0, 1), value.flatten(0, 1), visibility, groups
    )


def _rows(x: Tensor, groups: int, first: int = 0) -> Tensor:
    """Reshape (B, H, T, ...) to (N, R, T, ...), after `first` leading axes."""
    paired: Tensor = x.unflatten(first + 1, (groups, -1)).flatten(first, first + 1)
    return paired


def _met(g: Tensor, raised: Tensor | None, out: Tensor) -> Tensor:
    """Compute δ = Σ G ∘ O per row, minus the cotangent of L."""
    met = (g * out).sum(-1)
    return met if raised is None else met - raised


def _fused(query: Tensor, value: Tensor, visibility: Visibility) -> bool:
    """Tell whether torch's CPU kernel supports the call: scores have no mask, bias or softcap."""
    return query.device.type == "cpu" and visibility.plain and query.shape[-1] == value.shape[-1]


class _SoftmaxAttention(Function):
    """O and L as functions of queries, keys and values; also L as a sum `top` + `rest`."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, visibility: Visibility
    ) -> tuple[Tensor, ...]:
        if _fused(query, value, visibility):
            out, top = _flash(query, key, value, 0.0, visibility.causal, scale=visibility.scale)
            rest = torch.zeros_like(top)
        else:
            out, top, rest = (
                t.reshape(*query.shape[:3], *t.shape[3:])
                for t in attend(_heads(query, key, value, visibility))
            )
        # for a query without permitted keys: exp(S − ∞) = 0, but exp(−∞ + ∞) would be NaN
        top.masked_fill_(top == -torch.inf, torch.inf)
        return out, top + rest, top, rest

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, visibility = inputs
        out, _, top, rest = output
        ctx.visibility = visibility
        ctx.mark_non_differentiable(top, rest)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, out, top, rest)
        _keep_for_tangents(ctx, *tensors, top, rest)  # saving the output would be a cycle

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        g, raised = cotangents[:2]
        if g is None and raised is None:
            return None, None, None, None
        if torch.is_grad_enabled() and ctx.visibility.noticed is not None:
            ctx.visibility.noticed()
        g = torch.zeros_like(ctx.saved_tensors[3]) if g is None else g

        def pulled(*both: Tensor | None) -> tuple[Tensor, ...]:
            gradients: tuple[Tensor, ...] = _Pullback.apply(
                *both, *ctx.saved_tensors, ctx.visibility
            )
            return gradients

        if not any(map(_batched, (g, raised))):
            return *pulled(g, raised), None
        several, alone = _unbatched((g, raised))
        dims = tuple(None if t is None else 0 for t in several)
        return *map(alone, torch.vmap(pulled, dims)(*several)), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor, None, None]:
        query, key, value, top, rest = ctx.saved_tensors
        saved = (None, None, query, key, value, None, top, rest)
        moved = _Tangent.apply(*_several(tangents[:3]), *saved, ctx.visibility, (False,) * 3)
        return moved[0][0], moved[1][0], None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        return _folded(_SoftmaxAttention, info.batch_size, dims, inputs, tensors=3)


class _Pullback(Function):
    """q̄, k̄ and v̄, as functions of G, the cotangent of L, queries, keys and values."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        g, raised, query, key, value, out, top, rest, visibility = inputs
        groups = key.shape[1]
        if _fused(query, value, visibility) and raised is None:
            gradients = _flash_backward(
                g, query, key, value, out, top, 0.0, visibility.causal, scale=visibility.scale
            )
        else:
            heads, met = _heads(query, key, value, visibility), _met(g, raised, out)
            gradients = pull_back(heads, *(_rows(t, groups) for t in (g, met, top, rest)))
        likes = (query, key, value)
        return tuple(t.reshape(like.shape) for t, like in zip(gradients, likes, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, visibility = inputs
        ctx.visibility = visibility
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        _keep_for_tangents(ctx, *tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * 9
        wanted = ctx.needs_input_grad[2:5]
        several, alone = _unbatched(cotangents)
        pushed = _Tangent.apply(*several, *ctx.saved_tensors, ctx.visibility, wanted)
        pairs = zip(pushed, ctx.needs_input_grad, strict=False)
        gradients = (alone(t) if t is not None and needed else None for t, needed in pairs)
        return *gradients, *(None,) * 4

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        g, raised, *moved = tangents[:5]
        cotangent, _, *others = ctx.saved_tensors
        derivatives: list[Tensor | None] = [None] * 3
        if any(tangent is not None for tangent in moved):
            pushed = _Tangent.apply(
                *_several(moved), *ctx.saved_tensors, ctx.visibility, (True,) * 3
            )
            derivatives = _present(lambda t: t[0], pushed[2:])
        if g is not None or raised is not None:
            g = torch.zeros_like(cotangent) if g is None else g
            straight = _Pullback.apply(g, raised, *others, ctx.visibility)
            derivatives = [
                linear if curved is None else curved + linear
                for curved, linear in zip(derivatives, straight, strict=True)
            ]
        return tuple(derivatives)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        return _folded(_Pullback, info.batch_size, dims, inputs, tensors=8)


class _Tangent(Function):
    """Ȯ, L̇ = ρ and, if G is given, the tangents of q̄, k̄ and v̄, each with a leading axis K."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor | None, ...]:
        *moving, g, raised, query, key, value, out, top, rest, visibility, wanted = inputs
        groups, vectors = key.shape[1], next(len(t) for t in moving if t is not None)
        met = None if g is None or out is None else _met(g, raised, out)
        constants = _present(lambda t: _rows(t, groups), (top, rest, g, met))
        per_row = RowConstants(*constants)
        a, *others = moving
        tangents = Tangents(
            None if a is None else _rows(a, groups, 1), *_present(lambda t: t.flatten(1, 2), others)
        )
        heads = _heads(query, key, value, visibility)
        pushed = push_forward(heads, per_row, tangents, vectors, wanted)
        moved = (pushed.out, pushed.mean, pushed.query, pushed.key, pushed.value)
        shapes = ((*top.shape, value.shape[-1]), top.shape, query.shape, key.shape, value.shape)
        return tuple(
            None if t is None else t.reshape(vectors, *shape)
            for t, shape in zip(moved, shapes, strict=True)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise RunError(
            "second_order_attention: third derivatives are not supported "
            "(once_differentiable); use torch.nn.functional.scaled_dot_product_attention under "
            "sdpa_kernel(SDPBackend.MATH)"
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        if any(dim is not None for dim in dims[3:11]):
            return _folded(_Tangent, info.batch_size, dims, inputs, tensors=11, led=3)
        several = [
            None if t is None else _in_front(t, dim, info.batch_size)
            for t, dim in zip(inputs[:3], dims, strict=False)
        ]
        vectors = next(t.shape[:2] for t in several if t is not None)
        pushed = _Tangent.apply(*_present(lambda t: t.flatten(0, 1), several), *inputs[3:])
        return _mapped(_present(lambda t: t.unflatten(0, vectors), pushed))


def _keep_for_tangents(ctx: Any, *tensors: Tensor | None) -> None:
    """Save tensors for forward mode; autograd does not free these with a graph's saved tensors."""
    if forward_ad._current_level >= 0:
        ctx.save_for_forward(*tensors)


def _present(function: Callable[[Tensor], Tensor], tensors: Any) -> list[Any]:
    """Apply a function to each tensor; None stays None."""
    return [None if t is None else function(t) for t in tensors]


def _several(tangents: Any) -> list[Tensor | None]:
    """Add a leading axis of length K = 1 to each."""
    return _present(lambda t: t[None], tangents)


def _unbatched(cotangents: Any) -> tuple[list[Tensor | None], Callable[[Tensor], Tensor]]:
    """Unwrap the batch axis K of `is_grads_batched`, and move it to the front.

    `is_grads_batched` uses an older vmap, which has no rules for custom Functions. Without it,
    K = 1.

    Returns:
        The vectors, and the function that restores the batch axis of a result.
    """
    if not any(map(_batched, cotangents)):
        return _several(cotangents), lambda t: t[0]
    # to find the level of this vmap, enter one more level and leave it
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    unwrapped = [torch._remove_batch_dim(t, level, 0, 0) if _batched(t) else t for t in cotangents]
    size = next(len(inner) for inner, t in zip(unwrapped, cotangents, strict=True) if _batched(t))
    several = [
        inner if t is None or _batched(t) else t.expand(size, *t.shape)
        for inner, t in zip(unwrapped, cotangents, strict=True)
    ]
    return several, lambda t: torch._add_batch_dim(t, 0, level)


def _batched(tensor: Tensor | None) -> bool:
    return tensor is not None and torch._C._functorch.is_legacy_batchedtensor(tensor)


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
    """Merge a vmapped axis into the batch axis B, the second axis (after K) in the first `led`."""
    joined = []
    for number, (t, dim) in enumerate(zip(inputs[:tensors], dims, strict=False)):
        if t is not None:
            axis = int(number < led)
            t = _in_front(t, dim, size).movedim(0, axis).flatten(axis, axis + 1)
        joined.append(t)
    axis = int(led > 0)
    results = function.apply(*joined, *inputs[tensors:])
    return _mapped(_present(lambda t: t.unflatten(axis, (size, -1)).movedim(axis, 0), results))


def _mapped(
    outputs: Sequence[Tensor | None],
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """Return a vmap rule's outputs, with 0 as the position of their new axis."""
    return tuple(outputs), tuple(None if t is None else 0 for t in outputs)
