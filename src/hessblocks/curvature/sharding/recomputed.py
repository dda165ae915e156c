"""Checkpoint a part of a model for double backward, which recomputes the part, too.

torch's non-reentrant checkpointing frees the tensors that a forward pass saves, but not those that
a backward pass with `create_graph` saves, such as whole weights. Here both are freed, since the
backward pass is a single graph node that recomputes the part.
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
    """Switch for the values of its sharded parameters' gradients, see `Sums`."""

    def settled(self) -> AbstractContextManager[object]:
        """Context manager in which the part is evaluated and differentiated."""

    def __call__(
        self, *tensors: Shaped[Tensor, "..."], again: bool = False
    ) -> tuple[Shaped[Tensor, "..."], ...]:
        """Compute the floating-point results; `again` means that this is a recomputation."""


class Recomputed(torch.autograd.Function):
    """Autograd Function that computes `part(*tensors)` and saves only its inputs."""

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
        """Recompute the part and its backward pass, without a graph of the result."""
        ctx.part, ctx.wanted = part, wanted
        ctx.save_for_backward(*given)
        with part.settled(), torch.enable_grad():
            tensors, cotangents = _leaves(given, wanted)
            return _vjp(part(*tensors, again=True), cotangents, tensors, wanted)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:
        """Differentiate ⟨Jᵀ cotangents, directions⟩ by the tensors and the cotangents."""
        wanted = ctx.needs_input_grad[2:]
        with ctx.part.settled(), torch.enable_grad():
            tensors, cotangents = _leaves(ctx.saved_tensors, ctx.wanted)
            # these gradients need a graph only: `forward` has communicated their values already
            with ctx.part.sums.only_differentiated():
                results = ctx.part(*tensors, again=True)
                pulled = _vjp(results, cotangents, tensors, ctx.wanted, create_graph=True)
            found = _vjp(pulled, directions, [*tensors, *cotangents], wanted)
        return None, None, *found


def _leaves(given: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[list[Tensor], list[Tensor]]:
    """Detach `given`; split it into tensors and cotangents."""
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
    """Compute Jᵀ cotangents, J the Jacobian of results by the wanted tensors; None for others."""
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
