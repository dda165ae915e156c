"""Evaluate a function of the parameters and its gradient by `torch.autograd.grad`.

This is an independent check of our products: it shares only the model's forward pass with them. It
computes all logits at once and backpropagates through them.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from hessblocks.curvature.losses import Batch, BatchLoss, Differentiated, Readout, make_loss_node
from hessblocks.curvature.products.forward import backward_pass, differentiable_once, put_in
from hessblocks.curvature.witness import Gradient, Tensors
from hessblocks.errors import main_memory

COPIES = 16
"""Number of float64 copies of the parameters that finite differences need at once."""


def _weighted(logits: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(logits.shape, generator=draw, dtype=torch.float64).to(logits)
    return weights.double() * logits.double()


PAIRING = Differentiated(_weighted, lambda: 1)
"""Loss ⟨c, f⟩ with random c: linear in the logits, so that no logit has a zero gradient."""


@dataclass(frozen=True)
class Evaluated:
    """Function φ(θ) = Σ_batches ℓ(f(θ)) · share, with its gradient by some of the parameters."""

    problem: Any
    """Model and loss."""
    batches: Iterable[Batch]
    """Batches, iterated at each evaluation."""
    names: Sequence[str]
    """Names of the parameters to differentiate by."""
    loss: BatchLoss | None = None
    """Loss with share 1; None: the problem's loss, with share 1 / valid tokens."""
    twice: bool = True
    """Whether the model runs as for second derivatives, or as for a gradient."""

    @cached_property
    def _plain(self) -> Any:
        return self.problem.without_lazy_logits()

    def at(self, parameters: Tensors, gradient: bool) -> tuple[float, Gradient]:
        """Compute φ and, if `gradient`, g = ∇φ by parameter name."""
        names = self.names if gradient else ()
        total, sums = 0.0, {name: torch.zeros_like(parameters[name]) for name in names}
        for batch in self.batches:
            value, _, found = self.pulled(batch, parameters, names)
            total += value
            for name, one in found.items():
                sums[name] += one
        return total, sums

    def graph(
        self, batch: Batch, parameters: Tensors, names: Sequence[str]
    ) -> tuple[Readout, BatchLoss, Gradient]:
        """Return a batch's logits with their graph, its loss, and the graph's leaves by name."""
        leaves = {n: parameters[n].detach().requires_grad_() for n in names}
        with torch.enable_grad():
            found = self._plain.forward(batch, {**parameters, **leaves}, twice=self.twice)
        return found[0], self.loss or found[1], leaves

    def pulled(
        self, batch: Batch, parameters: Tensors, names: Sequence[str], *, create_graph: bool = False
    ) -> tuple[float, Gradient, Gradient]:
        """Return φ of a batch, the leaves by name, and the gradient by each leaf."""
        readout, loss, leaves = self.graph(batch, parameters, names)
        share = 1.0 if self.loss else 1 / self.problem.valid
        value, cotangent = make_loss_node(readout, loss, share).start()
        if not (leaves and readout.requires_grad):
            return value, leaves, {n: torch.zeros_like(leaf) for n, leaf in leaves.items()}
        with self.backward({**parameters, **leaves}):
            found = torch.autograd.grad(
                readout.hidden,
                list(leaves.values()),
                cotangent,
                create_graph=create_graph,
                materialize_grads=True,
            )
        return value, leaves, dict(zip(leaves, found, strict=True))

    @contextmanager
    def backward(self, parameters: Tensors) -> Iterator[None]:
        """Put `parameters` into the model while autograd may recompute checkpointed parts."""
        model = self.problem.model
        with backward_pass(model) if self.twice else differentiable_once(model):
            put_in(model, parameters)
            yield


def in_float64(problem: Any, batches: Iterable[Batch]) -> tuple[Any, list[Batch]] | None:
    """Copy a model and batches into float64.

    Args:
        problem: problem to copy; it is not changed.
        batches: batches to copy, with floating-point tensors in float64.

    Returns:
        The problem with the copied model, and the batches; None if the model is float64 already,
        cannot be copied, or the copies need more than a quarter of the memory.
    """
    weights = problem.weights.values()
    wide = all(p.dtype == torch.float64 for p in weights)
    if wide or COPIES * 8 * sum(p.numel() for p in weights) > main_memory() // 4:
        return None
    other = copy.copy(problem)
    try:
        other.move_to(copy.deepcopy(problem.model).double())
    except Exception:  # the model holds something that cannot be copied
        return None

    def widened(batch: Batch) -> Batch:
        fields = {name: getattr(batch, name) for name in ("raw", "arguments", "keywords", "labels")}
        return replace(batch, **tree_map(_wide, fields))

    return other, [widened(batch) for batch in batches]


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
