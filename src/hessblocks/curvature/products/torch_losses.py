"""torch's own loss modules, with all their options, as functions of the logits.

The options decide the mean: class weights and ignored classes count in it, and `reduction="sum"` takes none.
Letters: B rows of a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from hessblocks.conventions import IGNORED
from hessblocks.curvature.products.batches import Batch
from hessblocks.curvature.products.losses import (
    BatchLoss,
    CrossEntropy,
    LossDerivatives,
    given_labels,
)
from hessblocks.errors import ArgumentError

KNOWN: tuple[type[nn.Module], ...] = (
    nn.CrossEntropyLoss,
    nn.MSELoss,
    nn.BCEWithLogitsLoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
)
"""Losses whose mean is over labels (with their weights) or over entries."""


def torch_loss(module: nn.Module) -> Callable[[Batch], BatchLoss]:
    """How a batch's loss is made from a loss module of torch.

    Args:
        module: one of `KNOWN`, with any of its options but `reduction="none"`.

    Returns:
        From a batch with labels to its loss.

    Raises:
        ArgumentError: another kind of module, or no reduction.
    """
    if type(module) not in KNOWN:
        raise ArgumentError(
            f"loss: {type(module).__name__} is unknown; known: {', '.join(k.__name__ for k in KNOWN)}, or a "
            "function of outputs and batch that returns one loss for each valid row"
        )
    if module.reduction not in ("mean", "sum"):
        raise ArgumentError(f"loss: expected reduction='mean' or 'sum', got {module.reduction!r}")
    if _is_plain_cross_entropy(module):
        return lambda batch: _plain(module, batch)
    return lambda batch: ModuleLoss(module, given_labels(batch))


class ModuleLoss(BatchLoss):
    """A loss module of torch, summed, and differentiated twice by autodiff."""

    def __init__(self, module: Any, labels: Shaped[Tensor, "B ..."]) -> None:
        """Hold the labels as the module takes them."""
        self._module = copy.deepcopy(module).to(labels.device)
        self._module.reduction = "sum"
        self._labels = labels

    @property
    def valid(self) -> float:
        """What a mean is over: labels, each with its class's weight, or entries."""
        if not isinstance(self._module, nn.CrossEntropyLoss):
            return self._labels.numel()
        if self._labels.is_floating_point():
            return self._labels.numel() // self._labels.shape[min(1, self._labels.ndim - 1)]
        counted = self._labels[self._labels != self._module.ignore_index]
        weight = self._module.weight
        return counted.numel() if weight is None else float(weight[counted].sum())

    def total(self, logits: Float[Tensor, "B ..."]) -> float:
        """See `BatchLoss`."""
        return float(self._sum(logits).detach())

    def derivatives(self, logits: Float[Tensor, "B ..."], share: float) -> LossDerivatives:
        """See `BatchLoss`."""
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            total = self._sum(leaf) * share
            (gradient,) = torch.autograd.grad(total, leaf, create_graph=True)

        def curvature(direction: Tensor) -> Tensor:
            if not gradient.requires_grad:
                return torch.zeros_like(direction)
            return torch.autograd.grad(gradient, leaf, direction, retain_graph=True)[0]

        return LossDerivatives(
            total=float(total.detach()), gradient=gradient.detach(), curvature=curvature
        )

    def _sum(self, logits: Tensor) -> Tensor:
        labels = self._labels
        if not isinstance(self._module, nn.CrossEntropyLoss):
            labels = labels.to(logits.dtype)
            if labels.shape != logits.shape:
                raise ArgumentError(
                    f"labels: expected the shape of the logits, {tuple(logits.shape)}, got {tuple(labels.shape)}"
                )
        elif labels.is_floating_point():
            labels = labels.to(logits.dtype)
        try:
            found: Tensor = self._module.to(logits.dtype)(logits, labels)
        except (RuntimeError, IndexError, ValueError) as error:
            raise ArgumentError(
                f"labels: {type(self._module).__name__} does not take labels {tuple(labels.shape)} with logits "
                f"{tuple(logits.shape)} ({str(error).splitlines()[0]}); its classes stand on axis 1, those of "
                "loss='classification' and 'causal-lm' on the last"
            ) from error
        return found


def _is_plain_cross_entropy(module: Any) -> bool:
    """Whether the closed form of `CrossEntropy` serves: a mean over hard labels of equal weight."""
    return (
        isinstance(module, nn.CrossEntropyLoss)
        and module.weight is None
        and module.label_smoothing == 0
        and module.reduction == "mean"
    )


def _plain(module: Any, batch: Batch) -> BatchLoss:
    labels = given_labels(batch)
    if labels.is_floating_point() or labels.ndim != 1:
        return ModuleLoss(module, labels)
    return CrossEntropy(labels.masked_fill(labels == module.ignore_index, IGNORED))
