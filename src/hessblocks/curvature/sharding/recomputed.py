"""Checkpoint a part of a model for two derivatives: the double backward pass recomputes it too.

torch's non-reentrant checkpointing drops the tensors that a forward pass saves. It keeps those that
a backward pass with `create_graph` saves, whole weights among them. Here both are dropped, since
the backward pass is a single node of the graph, which recomputes the part.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from jaxtyping import Shaped
from torch import Tensor

from hessblocks.curvature.sharding.exchange import Sums


class Part(Protocol):
    """Function of tensors that can be evaluated again."""

    sums: Sums
    """Collector of the gradients of its sharded parameters, summed over processes."""

    def settled(self) -> AbstractContextManager[object]:
        """Enter the state in which the part is evaluated and differentiated; leave it on exit."""

    def __call__(
        self, *tensors: Shaped[Tensor, "..."], again: bool = False
    ) -> tuple[Shaped[Tensor, "..."], ...]:
        """Compute the results, in floating point; `again`: not for the first time."""


class Recomputed(torch.autograd.Function):
    """Autograd Function of `part(*tensors)` that saves nothing but its inputs."""

    @staticmethod
    def forward(
        ctx: Any, part: Part, *tensors: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."], ...]:
        """Evaluate the part without a graph."""
        ctx.part = part
        ctx.save_for_backward(*tensors)
        with part.settled():
            return part(*tensors)

    @staticmethod
    def backward(
        ctx: Any, *cotangents: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."] | None, ...]:
        """Multiply the cotangents by Jᵀ, J the Jacobian of the part."""
        wanted = ctx.needs_input_grad[1:]
        return None, *_Pullback.apply(ctx.part, wanted, *ctx.saved_tensors, *cotangents)


class _Pullback(torch.autograd.Function):
    """Vector-Jacobian product, (tensors, cotangents) ↦ Jᵀ cotangents, as one node of the graph."""

    @staticmethod
    def forward(
        ctx: Any, part: Part, wanted: Sequence[bool], *given: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Evaluate the part again, and its backward pass, without a graph outside."""
        ctx.part, ctx.wanted = part, wanted
        ctx.save_for_backward(*given)
        with part.settled(), torch.enable_grad():
            tensors, cotangents = _leaves(given, wanted)
            return _vjp(part(*tensors, again=True), cotangents, tensors, wanted)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:
        """Differentiate ⟨Jᵀ cotangents, directions⟩ in the tensors and the cotangents."""
        wanted = ctx.needs_input_grad[2:]
        with ctx.part.settled(), torch.enable_grad():
            tensors, cotangents = _leaves(ctx.saved_tensors, ctx.wanted)
            # only the derivative of these sums is needed: `forward` has sent their values already
            with ctx.part.sums.only_differentiated():
                results = ctx.part(*tensors, again=True)
                pulled = _vjp(results, cotangents, tensors, ctx.wanted, create_graph=True)
            found = _vjp(pulled, directions, [*tensors, *cotangents], wanted)
        return None, None, *found


def _leaves(given: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[list[Tensor], list[Tensor]]:
    """Split into tensors and cotangents, cut off from the graph that made them."""
    detached = [tensor.detach() for tensor in given]
    tensors, cotangents = detached[: len(wanted)], detached[len(wanted) :]
    for tensor, differentiated in zip(tensors, wanted, strict=True):
        tensor.requires_grad_(differentiated)
    return tensors, [cotangent.requires_grad_() for cotangent in cotangents]


def _vjp(
    results: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    wanted: Sequence[bool],
    *,
    create_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Compute Jᵀ cotangents, J the Jacobian of results in the wanted tensors; None for others."""
    inputs = [tensor for tensor, asked in zip(tensors, wanted, strict=True) if asked]
    pairs = [
        (result, cotangent)
        for result, cotangent in zip(results, cotangents, strict=True)
        if result is not None and cotangent is not None and result.requires_grad
    ]
    products = iter(
        torch.autograd.grad(
            [result for result, _ in pairs],
            inputs,
            [cotangent for _, cotangent in pairs],
            create_graph=create_graph,
            allow_unused=True,
        )
        if pairs
        else [None] * len(inputs)
    )
    return tuple(next(products) if asked else None for asked in wanted)
