"""Checkpoint a part for two derivatives: forward, backward and double backward recompute it.

Non-reentrant checkpointing drops what the forward pass saves, but what a backward pass with
`create_graph` saves, whole weights among it, stays. Here neither stays: the backward pass is one
node of the graph too.
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
    """Of the gradients by its sharded parameters."""

    def settled(self) -> AbstractContextManager[object]:
        """Enter the state in which it is evaluated and differentiated; undo it afterwards."""

    def __call__(
        self, *tensors: Shaped[Tensor, "..."], again: bool = False
    ) -> tuple[Shaped[Tensor, "..."], ...]:
        """Compute its results, all of floating point; `again` after the model's forward pass."""


class Recomputed(torch.autograd.Function):
    """Autograd Function of `part(*tensors)` that keeps nothing but the tensors."""

    @staticmethod
    def forward(
        ctx: Any, part: Part, *tensors: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."], ...]:
        """Evaluate it without a graph."""
        ctx.part = part
        ctx.save_for_backward(*tensors)
        with part.settled():
            return part(*tensors)

    @staticmethod
    def backward(
        ctx: Any, *cotangents: Shaped[Tensor, "..."]
    ) -> tuple[Shaped[Tensor, "..."] | None, ...]:
        """Multiply by Jᵀ of the part."""
        wanted = ctx.needs_input_grad[1:]
        return None, *_Pullback.apply(ctx.part, wanted, *ctx.saved_tensors, *cotangents)


class _Pullback(torch.autograd.Function):
    """(tensors, cotangents) ↦ Jᵀ cotangents, as one node."""

    @staticmethod
    def forward(
        ctx: Any, part: Part, wanted: Sequence[bool], *given: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Evaluate the part again, and its backward pass."""
        ctx.part, ctx.wanted = part, wanted
        ctx.save_for_backward(*given)
        with part.settled(), torch.enable_grad():
            tensors, cotangents = _leaves(given, wanted)
            return _pulled_back(part(*tensors, again=True), cotangents, tensors, wanted)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:
        """The derivative of ⟨Jᵀ cotangents, directions⟩ by tensors and cotangents."""
        asked = ctx.needs_input_grad[2:]
        with ctx.part.settled(), torch.enable_grad():
            tensors, cotangents = _leaves(ctx.saved_tensors, ctx.wanted)
            # the backward pass has sent these sums already: here they are differentiated, not read
            with ctx.part.sums.only_differentiated():
                results = ctx.part(*tensors, again=True)
                pulled = _pulled_back(results, cotangents, tensors, ctx.wanted, create_graph=True)
            found = _pulled_back(pulled, directions, [*tensors, *cotangents], asked)
        return None, None, *found


def _leaves(given: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors and cotangents without their history."""
    fresh = [tensor.detach() for tensor in given]
    tensors, cotangents = fresh[: len(wanted)], fresh[len(wanted) :]
    for tensor, one in zip(tensors, wanted, strict=True):
        tensor.requires_grad_(one)
    return tensors, [cotangent.requires_grad_() for cotangent in cotangents]


def _pulled_back(
    results: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    wanted: Sequence[bool],
    *,
    create_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Jᵀ cotangents by the tensors that are wanted."""
    inputs = [tensor for tensor, one in zip(tensors, wanted, strict=True) if one]
    pairs = [
        (result, cotangent)
        for result, cotangent in zip(results, cotangents, strict=True)
        if result is not None and cotangent is not None and result.requires_grad
    ]
    found = iter(
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
    return tuple(next(found) if one else None for one in wanted)
