"""Loss of a batch as a function of its logits: value, gradient, curvature and its root.

Letters: f logits, H_ℓ = ∂²φ/∂f² the loss's curvature.
"""

import abc
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from hessblocks.conventions import IGNORED
from hessblocks.curvature.closed import spelled
from hessblocks.curvature.losses.batches import Batch
from hessblocks.curvature.losses.lazy_logits import LogitsUsed
from hessblocks.errors import ArgumentError, HessblocksError, RunError, out_of_memory

CERTAIN = 1e4
"""Logit whose softmax probability rounds to 1 where all other logits are 0."""
ROUNDING = 1e-5
"""Negative curvature up to this share of the largest counts as rounding error."""
REPEATED = 1e-4
"""Two calls agree if no loss changes by more than this share of the largest loss."""

LossFunction = Callable[[Any, Any], Float[Tensor, "..."]]
"""Maps the model's outputs and the batch to one loss per valid token or row."""

Root = Callable[[Shaped[Tensor, "..."]], Float[Tensor, "..."]]
"""ε ↦ L ε for random signs ε shaped as the logits, where L Lᵀ = H_ℓ."""


@dataclass(frozen=True, kw_only=True)
class LossDerivatives:
    """Value, gradient and Hessian-vector product of a batch's loss at given logits."""

    total: float
    """Sum of the losses of the valid rows, times `share`."""
    gradient: Float[Tensor, "..."]
    """∂ total / ∂ logits, shaped as the logits."""
    curvature: Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
    """u ↦ H_ℓ u for one direction u shaped as the logits; works under `torch.vmap`."""


class BatchLoss(abc.ABC):
    """Loss of one batch as a function of its logits, summed over its valid rows."""

    @property
    @abc.abstractmethod
    def valid(self) -> float:
        """Denominator of the mean loss: valid tokens, labelled rows or target entries."""

    @abc.abstractmethod
    def total(self, logits: Float[Tensor, "..."]) -> float:
        """Sum the losses."""

    @abc.abstractmethod
    def derivatives(self, logits: Float[Tensor, "..."], share: float) -> LossDerivatives:
        """Compute the summed loss, its gradient and H_ℓ at detached logits, all times `share`."""

    def root(self, logits: Float[Tensor, "..."], share: float) -> Root:
        """Return ε ↦ L ε with L Lᵀ = `share` · H_ℓ at detached logits.

        Raises:
            ArgumentError: no formula for L is known.
        """
        raise ArgumentError(
            "loss: method='sampled' needs a formula for the loss's curvature, which a callable "
            "does not have; use a loss by name, a loss module of torch, or method='probes'"
        )

    def noise_shape(self, logits: Float[Tensor, "..."]) -> torch.Size:
        """Return the shape of the random signs ε that `root` takes: one sign per logit."""
        return logits.shape


@dataclass(frozen=True)
class Differentiated(BatchLoss):
    """Loss whose two derivatives by the logits come from autograd."""

    losses: Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
    """Maps the logits to the losses of the valid rows, or to their sum."""
    count: Callable[[], float]
    """Computes the batch's part of the mean's denominator."""
    classes: bool | None = None
    """True: linear in the classes' log-probabilities; False: a sum over entries; None: unknown."""
    module: nn.Module | None = None
    """The loss module of torch that computes the losses, if there is one."""

    @property
    def valid(self) -> float:
        """See `BatchLoss`."""
        return self.count()

    def total(self, logits: Float[Tensor, "..."]) -> float:
        """See `BatchLoss`."""
        return float(self.losses(logits).detach().sum())

    def derivatives(self, logits: Float[Tensor, "..."], share: float) -> LossDerivatives:
        """See `BatchLoss`.

        Returns:
            Summed loss, gradient and u ↦ H_ℓ u.

        Raises:
            ArgumentError: the loss depends on the parameters other than through the logits.
        """
        with torch.enable_grad(), spelled():
            if self.losses(logits.detach()).requires_grad:
                raise ArgumentError(
                    "loss: expected a function of the logits and the batch; it also depends on "
                    "another output of the model or on a parameter, whose derivative would be left "
                    "out: leave that term out, or detach it"
                )
            leaf = logits.detach().requires_grad_()
            total = self.losses(leaf).sum() * share
            (gradient,) = torch.autograd.grad(total, leaf, create_graph=True)

        def curvature(direction: Tensor) -> Tensor:
            if not gradient.requires_grad:
                return torch.zeros_like(direction)
            return torch.autograd.grad(gradient, leaf, direction, retain_graph=True)[0]

        return LossDerivatives(
            total=float(total.detach()), gradient=gradient.detach(), curvature=curvature
        )

    def root(self, logits: Float[Tensor, "..."], share: float) -> Root:
        """Return ε ↦ L ε with L Lᵀ = `share` · H_ℓ.

        Returns:
            √A (√p∘ε − p ⟨√p, ε⟩) per row for classes, A from `_weights`; √(diag H_ℓ)∘ε for a sum
            over entries.

        Raises:
            ArgumentError: the form of the loss is unknown, or the loss is not convex.
        """
        if self.classes is None:
            return super().root(logits, share)
        if not self.classes:
            curvature = self.derivatives(logits, share).curvature(torch.ones_like(logits))
            roots = _convex(curvature).sqrt()
            return lambda signs: roots * signs
        axis = min(1, logits.ndim - 1)
        weights = _convex(self._weights(logits, share, axis)).sqrt()
        halves = logits.softmax(axis).sqrt()

        def times_root(signs: Tensor) -> Tensor:
            weighted = halves * signs
            return weights * (weighted - halves.square() * weighted.sum(axis, keepdim=True))

        return times_root

    def _weights(self, logits: Tensor, share: float, axis: int) -> Tensor:
        """Compute A of each row, whose loss is A log Σ exp(f) − ⟨a, f⟩ with gradient A p − a.

        The gradient's first entry is A − a_0 at logits that give the first class probability 1. It
        is −a_0 at logits that give the last class probability 1. A is their difference.

        Returns:
            A, shaped as the logits with one entry on the class axis.
        """
        if logits.shape[axis] == 1:
            return torch.zeros_like(logits)
        gradients = []
        for sure in (0, -1):
            certain = torch.zeros_like(logits)
            certain.select(axis, sure).fill_(CERTAIN)
            gradients.append(self.derivatives(certain, share).gradient.narrow(axis, 0, 1))
        return gradients[0] - gradients[1]


def _convex(curvature: Tensor) -> Tensor:
    """Clamp rounding errors below 0 to 0; raise ArgumentError at really negative curvatures."""
    if float(curvature.min()) < -ROUNDING * float(curvature.abs().max()):
        raise ArgumentError(
            "loss: method='sampled' needs a convex loss, and this one has negative curvature for "
            "these labels; use method='probes'"
        )
    return curvature.clamp(min=0)


def callable_loss(
    function: LossFunction, batch: Batch, outputs: Any, logits: Float[Tensor, "..."]
) -> Differentiated:
    """Bind a user's function of the outputs to a batch.

    Args:
        function: maps outputs and batch to one loss per valid row.
        batch: `function` gets its `raw`.
        outputs: outputs of the model.
        logits: the logits among `outputs`.

    Returns:
        The loss as a function of the logits alone. It raises an ArgumentError if `function` returns
        a mean, ignores the logits, or includes losses of ignored labels.
    """

    def losses(logits: Tensor) -> Tensor:
        version, followed = logits._version, logits.requires_grad and torch.is_grad_enabled()
        with named_errors("loss: the callable"):
            losses = function(_with_logits(outputs, logits), batch.raw)
        real = isinstance(losses, Tensor) and losses.is_floating_point()
        if not real or logits._version != version or (followed and not losses.requires_grad):
            got = str(losses.dtype) if isinstance(losses, Tensor) else type(losses).__name__
            raise ArgumentError(
                "loss: expected a callable that returns a tensor of real numbers, computed from "
                "the logits by operations of torch that autograd follows (no .detach(), .item() or "
                f"numpy), and that does not write into the logits; it returned {got}"
            )
        if losses.ndim == 0:
            raise ArgumentError(
                "loss: expected one loss for each valid token or row, got their mean or sum; "
                "leave it out (reduction='none')"
            )
        return losses

    def count() -> int:
        first, again = losses(logits.detach()), losses(logits.detach())
        number = first.numel()
        if again.numel() != number or _differ(first, again):
            raise RunError(
                "loss: two calls of the callable on the same logits differ, so that nothing "
                "computed from it can be repeated; look for dropout or other random numbers in it"
            )
        if _counts_ignored(number, batch.labels):
            raise ArgumentError(
                f"loss: the callable returned {number:,} losses, those of labels {IGNORED} among "
                f"them, which would count in the mean; return losses[labels != {IGNORED}]"
            )
        return number

    return Differentiated(losses, count)


@contextmanager
def named_errors(subject: str) -> Iterator[None]:
    """Re-raise an exception of the caller's code as a RunError that quotes its first line.

    Args:
        subject: name of the code that runs in the block, for the message.

    Raises:
        RunError: the block raised anything but our errors or an out-of-memory error.
    """
    try:
        yield
    except (HessblocksError, LogitsUsed):
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        first = next(iter(str(error).splitlines()), "")
        raise RunError(f"{subject} failed: {type(error).__name__}: {first}") from error


def _differ(first: Tensor, second: Tensor) -> bool:
    """Tell whether two equally long lists of losses differ by more than rounding."""
    change = (first - second.view_as(first)).abs()
    return bool((change > REPEATED * first.abs().max()).any()) if change.numel() else False


def _counts_ignored(number: int, labels: Tensor | None) -> bool:
    """Tell whether `number` losses include those of ignored labels, shifted by one or not."""
    if labels is None or labels.is_floating_point():
        return False
    counted = labels != IGNORED
    moved = counted[:, 1:] if labels.ndim > 1 else counted
    valid = [int(labelled.sum()) for labelled in (counted, moved) if labelled.numel() == number]
    return bool(valid) and max(valid) < number and int(counted.sum()) != number


def _with_logits(outputs: Any, logits: Tensor) -> Any:
    """Copy the outputs, with `logits` in place of the outputs' logits."""
    if isinstance(outputs, Tensor):
        return logits
    if isinstance(outputs, tuple):
        return (logits, *outputs[1:])
    copied = copy.copy(outputs)
    if isinstance(outputs, dict):
        copied["logits"] = logits
    if not isinstance(outputs, dict) or hasattr(outputs, "logits"):
        copied.logits = logits
    return copied
