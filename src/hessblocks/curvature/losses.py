"""Losses as functions of the logits: sum over the valid rows, gradient, curvature.

Everything is computed in the dtype of the logits; the model's own loss, which may cast to float32,
is never used. Letters: p probabilities, u a direction in logit space, K directions together.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hessblocks.curvature.batches import Batch
from hessblocks.errors import ArgumentError, unknown_name

IGNORED = -100
"""Label of a position that does not count, as everywhere in torch."""

LossFunction = Callable[[Any, Any], Tensor]
"""From the model's outputs and the batch to the losses of the valid tokens or rows."""


class BatchLoss(abc.ABC):
    """The loss of one batch as a function of its logits, summed over its valid rows."""

    @property
    @abc.abstractmethod
    def valid(self) -> int:
        """Rows that count: valid tokens, labelled rows or target entries."""

    @abc.abstractmethod
    def total(self, logits: Tensor) -> Tensor:
        """The sum of the losses, a scalar."""

    @abc.abstractmethod
    def gradient(self, logits: Tensor) -> Tensor:
        """∂ total / ∂ logits, differentiable once more."""

    @abc.abstractmethod
    def curvature(self, logits: Tensor, directions: Tensor) -> Tensor:
        """H_ℓ u for (K, *logits) directions."""


class CrossEntropy(BatchLoss):
    """−log p of the target, over classes on the last axis."""

    def __init__(self, targets: Tensor) -> None:
        """Hold `targets`, shaped as the logits without their last axis; IGNORED does not count."""
        self._targets = targets
        self._counts = targets != IGNORED

    @property
    def valid(self) -> int:
        """See `BatchLoss`."""
        return int(self._counts.sum())

    def total(self, logits: Tensor) -> Tensor:
        """See `BatchLoss`."""
        check_targets(self._targets, logits)
        return F.cross_entropy(
            logits.flatten(0, -2), self._targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )

    def gradient(self, logits: Tensor) -> Tensor:
        """See `BatchLoss`."""
        gradient: Tensor = _CrossEntropyGradient.apply(logits, self._targets, self._counts)
        return gradient

    def curvature(self, logits: Tensor, directions: Tensor) -> Tensor:
        """See `BatchLoss`."""
        probabilities = _valid_probabilities(logits.detach(), self._counts)
        return _cross_entropy_curvature(probabilities, directions)


class SquaredError(BatchLoss):
    """(f − y)² summed over all target entries."""

    def __init__(self, targets: Tensor) -> None:
        """Hold `targets`, shaped as the logits."""
        self._targets = targets

    @property
    def valid(self) -> int:
        """See `BatchLoss`."""
        return self._targets.numel()

    def _residual(self, logits: Tensor) -> Tensor:
        targets = self._targets.to(logits.dtype)
        if logits.ndim == targets.ndim + 1 and logits.shape[-1] == 1:
            targets = targets[..., None]
        if targets.shape != logits.shape:
            raise ArgumentError(
                f"labels: expected the shape of the logits, {tuple(logits.shape)}, got {tuple(targets.shape)}"
            )
        return logits - targets

    def total(self, logits: Tensor) -> Tensor:
        """See `BatchLoss`."""
        return self._residual(logits).square().sum()

    def gradient(self, logits: Tensor) -> Tensor:
        """See `BatchLoss`."""
        return 2 * self._residual(logits)

    def curvature(self, logits: Tensor, directions: Tensor) -> Tensor:
        """See `BatchLoss`."""
        return 2 * directions


class CallableLoss(BatchLoss):
    """A user's function of the outputs, differentiated twice by autodiff."""

    def __init__(
        self,
        function: LossFunction,
        replace: Callable[[Tensor], Any],
        batch: Batch,
        logits: Tensor,
    ) -> None:
        """Bind the function to a batch; `replace` puts other logits into the model's outputs."""
        self._function = function
        self._replace = replace
        self._raw = batch.raw
        self._logits = logits.detach()

    def _losses(self, logits: Tensor) -> Tensor:
        return self._function(self._replace(logits), self._raw)

    @property
    def valid(self) -> int:
        """See `BatchLoss`."""
        return self._losses(self._logits).numel()

    def total(self, logits: Tensor) -> Tensor:
        """See `BatchLoss`."""
        return self._losses(logits).sum()

    def gradient(self, logits: Tensor) -> Tensor:
        """See `BatchLoss`."""
        with torch.enable_grad():
            leaf = logits if logits.requires_grad else logits.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.total(leaf), leaf, create_graph=True)
        return gradient

    def curvature(self, logits: Tensor, directions: Tensor) -> Tensor:
        """See `BatchLoss`."""
        leaf = logits.detach().requires_grad_()
        gradient = self.gradient(leaf)
        if not gradient.requires_grad:
            return torch.zeros_like(directions)
        (product,) = torch.autograd.grad(gradient, leaf, directions, is_grads_batched=True)
        return product


class _CrossEntropyGradient(torch.autograd.Function):
    """p − onehot(target) on valid rows, with the closed-form derivative p∘u − p (p·u)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
        probabilities = _valid_probabilities(logits, counts)
        ctx.save_for_backward(probabilities)
        places = targets.clamp(min=0)[..., None]
        return probabilities.scatter_add(-1, places, -counts[..., None].to(logits.dtype))

    @staticmethod
    def backward(ctx: Any, *directions: Tensor) -> tuple[Tensor, None, None]:
        (probabilities,) = ctx.saved_tensors
        return _cross_entropy_curvature(probabilities, directions[0]), None, None


def _valid_probabilities(logits: Tensor, counts: Tensor) -> Tensor:
    return logits.softmax(-1).masked_fill_(~counts[..., None], 0.0)


def _cross_entropy_curvature(probabilities: Tensor, directions: Tensor) -> Tensor:
    weighted = probabilities * directions
    return weighted - probabilities * weighted.sum(-1, keepdim=True)


def check_targets(targets: Tensor, logits: Tensor) -> None:
    """Make sure that cross-entropy can be taken.

    Raises:
        ArgumentError: shapes or classes do not fit.
    """
    if targets.shape != logits.shape[:-1]:
        raise ArgumentError(
            f"labels: expected shape {tuple(logits.shape[:-1])} to go with logits of shape "
            f"{tuple(logits.shape)}, got {tuple(targets.shape)}"
        )
    counted = targets[targets != IGNORED]
    if counted.numel() and not 0 <= int(counted.min()) <= int(counted.max()) < logits.shape[-1]:
        raise ArgumentError(
            f"labels: expected classes from 0 to {logits.shape[-1] - 1} (or {IGNORED} to ignore), "
            f"got {int(counted.min())} to {int(counted.max())}"
        )


def causal_targets(batch: Batch) -> Tensor:
    """The next token at each position; the last position is ignored.

    Without labels, padding is neither predicted nor predicted from.
    """
    if batch.labels is not None:
        return F.pad(batch.labels[:, 1:], (0, 1), value=IGNORED)
    targets = F.pad(batch.inputs[:, 1:], (0, 1), value=IGNORED)
    if batch.attention_mask is None:
        return targets
    real = batch.attention_mask != 0
    return targets.masked_fill(~real | ~F.pad(real[:, 1:], (0, 1)), IGNORED)


def given_labels(batch: Batch) -> Tensor:
    """The batch's own labels.

    Raises:
        ArgumentError: it has none.
    """
    if batch.labels is None:
        raise ArgumentError("batches: this loss needs labels; give dicts with `labels` or pairs")
    return batch.labels


LOSSES: dict[str, Callable[[Batch], BatchLoss]] = {
    "causal-lm": lambda batch: CrossEntropy(causal_targets(batch)),
    "masked-lm": lambda batch: CrossEntropy(given_labels(batch)),
    "classification": lambda batch: CrossEntropy(given_labels(batch)),
    "regression": lambda batch: SquaredError(given_labels(batch)),
}


def check_loss(loss: str | LossFunction) -> None:
    """Make sure that a loss is known or callable.

    Raises:
        ArgumentError: neither.
    """
    if not callable(loss) and loss not in LOSSES:
        raise unknown_name("loss", str(loss), [*LOSSES, "a callable(outputs, batch)"])
