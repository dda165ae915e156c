"""torch's own loss modules, with all their options, as functions of the logits.

The options decide the mean: class weights and ignored classes count in it, and `reduction="sum"` takes none.
Letters: B rows of a batch.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.conventions import IGNORED
from hessblocks.curvature.products.batches import Batch
from hessblocks.curvature.products.losses import (
    BatchLoss,
    CrossEntropy,
    Differentiated,
    given_labels,
)
from hessblocks.errors import ArgumentError

KNOWN: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.CrossEntropyLoss: F.cross_entropy,
    nn.MSELoss: F.mse_loss,
    nn.NLLLoss: F.nll_loss,
    nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits,
    nn.BCELoss: F.binary_cross_entropy,
    nn.L1Loss: F.l1_loss,
    nn.SmoothL1Loss: F.smooth_l1_loss,
    nn.HuberLoss: F.huber_loss,
    nn.PoissonNLLLoss: F.poisson_nll_loss,
    nn.SoftMarginLoss: F.soft_margin_loss,
}
"""Losses whose mean is over labels (with their weights) or over entries, and their functions."""

OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
"""Those whose labels are classes."""


def as_module(loss: Any) -> Any:
    """The module of a function of torch, with the options of its `functools.partial`; anything else as it came."""
    function, options = (
        (loss.func, loss.keywords) if isinstance(loss, functools.partial) else (loss, {})
    )
    return next((kind(**options) for kind, known in KNOWN.items() if known is function), loss)


def torch_loss(module: Any) -> Callable[[Batch], BatchLoss]:
    """How a batch's loss is made from a loss module of torch.

    Args:
        module: one of `KNOWN`, with any of its options but `reduction="none"`.

    Returns:
        From a batch with labels to its loss; in closed form for a mean over hard labels of equal weight.

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
    plain = (
        isinstance(module, nn.CrossEntropyLoss)
        and module.weight is None
        and module.label_smoothing == 0
        and module.reduction == "mean"
    )

    def loss_of(batch: Batch) -> BatchLoss:
        labels = given_labels(batch)
        if plain and labels.ndim == 1 and not labels.is_floating_point():
            return CrossEntropy(labels.masked_fill(labels == module.ignore_index, IGNORED))
        return ModuleLoss(module, labels)

    return loss_of


class ModuleLoss(Differentiated):
    """A loss module of torch, summed."""

    def __init__(self, module: Any, labels: Shaped[Tensor, "B ..."]) -> None:
        """Hold the labels as the module takes them."""
        self._module = copy.deepcopy(module).to(labels.device)
        self._module.reduction = "sum"
        self._labels = labels

    @property
    def valid(self) -> float:
        """What a mean is over: labels, each with its class's weight, or entries."""
        if not isinstance(self._module, OF_CLASSES):
            return self._labels.numel()
        if self._labels.is_floating_point():
            return self._labels.numel() // self._labels.shape[min(1, self._labels.ndim - 1)]
        counted = self._labels[self._labels != self._module.ignore_index]
        weight = self._module.weight
        return counted.numel() if weight is None else float(weight[counted].sum())

    def losses(self, logits: Float[Tensor, "B ..."]) -> Float[Tensor, ""]:
        """See `Differentiated`."""
        labels = self._labels
        if not isinstance(self._module, OF_CLASSES):
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
