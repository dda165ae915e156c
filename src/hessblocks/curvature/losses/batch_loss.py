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
"""A logit so far above zeros that its probability is 1 to all digits."""
ROUNDING = 1e-5
"""Share of the largest curvature that may be rounding."""
REPEATED = 1e-4
"""Largest change between two calls, as a share of the largest loss, that rounding may explain."""

LossFunction = Callable[[Any, Any], Float[Tensor, "..."]]
"""From the model's outputs and the batch to the losses of the valid tokens or rows."""

Root = Callable[[Shaped[Tensor, "..."]], Float[Tensor, "..."]]
"""From signs shaped as the logits to L ε, where L Lᵀ is the loss's curvature."""


@dataclass(frozen=True, kw_only=True)
class LossDerivatives:
    """Value, gradient and curvature of a batch's share of the loss at one point."""

    total: float
    """Sum over the valid rows, times the share of one."""
    gradient: Float[Tensor, "..."]
    """∂ total / ∂ logits, shaped as the logits."""
    curvature: Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
    """u ↦ H_ℓ u for one direction shaped as the logits; may be vmapped."""


class BatchLoss(abc.ABC):
    """Loss of one batch as a function of its logits, summed over its valid rows."""

    @property
    @abc.abstractmethod
    def valid(self) -> float:
        """Count of the mean: valid tokens, labelled rows or target entries."""

    @abc.abstractmethod
    def total(self, logits: Float[Tensor, "..."]) -> float:
        """Sum the losses."""

    @abc.abstractmethod
    def derivatives(self, logits: Float[Tensor, "..."], share: float) -> LossDerivatives:
        """Compute sum, gradient and curvature at detached logits, all times `share`."""

    def root(self, logits: Float[Tensor, "..."], share: float) -> Root:
        """Return ε ↦ L ε with L Lᵀ = H_ℓ at detached logits, times the root of `share`.

        Raises:
            ArgumentError: it is not known.
        """
        raise ArgumentError(
            "loss: method='sampled' needs a root of the loss's curvature, which a callable does "
            "not tell; use a loss by name, a loss module of torch, or method='probes'"
        )

    def noise_shape(self, logits: Float[Tensor, "..."]) -> torch.Size:
        """Shape of the signs that the root is given: a sign per logit."""
        return logits.shape


@dataclass(frozen=True)
class Differentiated(BatchLoss):
    """Loss that autograd differentiates twice, in the logits alone."""

    losses: Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
    """From the logits to the losses of the valid rows, or to their sum."""
    count: Callable[[], float]
    """Weight of the batch in the mean."""
    classes: bool | None = None
    """Whether it is linear in log-probabilities of classes, or a sum over entries; None: neither is
    known."""
    module: nn.Module | None = None
    """The loss module of torch that it is, if any."""

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
            Sum, gradient and curvature.

        Raises:
            ArgumentError: the loss depends on the parameters by another way than the logits.
        """
        with torch.enable_grad(), spelled():
            if self.losses(logits.detach()).requires_grad:
                raise ArgumentError(
                    "loss: expected a function of the logits and the batch; it has a derivative by "
                    "something else (another output of the model, or a parameter), which would be "
                    "left out: leave that term out, or detach it"
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
        """Return √(A p)∘ε − ... of each row for classes, √h∘ε for a sum over entries.

        Returns:
            ε ↦ L ε.

        Raises:
            ArgumentError: the loss has a form that is not known, or is not convex.
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
        """Compute A of each row, whose loss is A log Σ exp(f) − ⟨a, f⟩: the gradient is A p − a.

        The first entry of the gradient is A − a_0 where all probability is with the first class,
        and −a_0 where it is with the last.

        Returns:
            A, with an axis of one entry in the place of the classes.
        """
        if logits.shape[axis] == 1:
            return torch.zeros_like(logits)
        found = []
        for sure in (0, -1):
            certain = torch.zeros_like(logits)
            certain.select(axis, sure).fill_(CERTAIN)
            found.append(self.derivatives(certain, share).gradient.narrow(axis, 0, 1))
        return found[0] - found[1]


def _convex(curvature: Tensor) -> Tensor:
    """Clamp curvatures at 0, up to rounding."""
    if float(curvature.min()) < -ROUNDING * float(curvature.abs().max()):
        raise ArgumentError(
            "loss: method='sampled' needs a convex loss, and this one has negative curvature for "
            "these labels; use method='probes'"
        )
    return curvature.clamp(min=0)


IDLE = Differentiated(lambda logits: logits.flatten()[:0], lambda: 0, classes=False)
"""Zero, as a function of any logits."""


def callable_loss(
    function: LossFunction, batch: Batch, outputs: Any, logits: Float[Tensor, "..."]
) -> Differentiated:
    """Bind a user's function of the outputs to a batch.

    Args:
        function: from outputs and batch to one loss a valid row.
        batch: what it is given, as it came.
        outputs: outputs of the model.
        logits: those among the outputs.

    Returns:
        The loss as a function of the logits alone; it refuses what is no function of them, a mean,
        and losses of labels that are to be ignored.
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
        found, again = losses(logits.detach()), losses(logits.detach())
        number = found.numel()
        if again.numel() != number or _differ(found, again):
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
def named_errors(what: str) -> Iterator[None]:
    """Re-raise what foreign code raises as a sentence that quotes its first line.

    Args:
        what: runs inside, for the message.

    Raises:
        RunError: anything was raised but errors of ours, or a lack of memory.
    """
    try:
        yield
    except (HessblocksError, LogitsUsed):
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        first = next(iter(str(error).splitlines()), "")
        raise RunError(f"{what} failed: {type(error).__name__}: {first}") from error


def _differ(first: Tensor, second: Tensor) -> bool:
    """Tell whether equally many losses differ by more than rounding."""
    change = (first - second.view_as(first)).abs()
    return bool((change > REPEATED * first.abs().max()).any()) if change.numel() else False


def _counts_ignored(number: int, labels: Tensor | None) -> bool:
    """Tell whether losses, one per label or all but the first of a row, include ignored ones."""
    if labels is None or labels.is_floating_point():
        return False
    counted = labels != IGNORED
    moved = counted[:, 1:] if labels.ndim > 1 else counted
    valid = [int(some.sum()) for some in (counted, moved) if some.numel() == number]
    return bool(valid) and max(valid) < number and int(counted.sum()) != number


def _with_logits(outputs: Any, logits: Tensor) -> Any:
    """Return the same outputs with other logits."""
    if isinstance(outputs, Tensor):
        return logits
    if isinstance(outputs, tuple):
        return (logits, *outputs[1:])
    other = copy.copy(outputs)
    if isinstance(outputs, dict):
        other["logits"] = logits
    if not isinstance(outputs, dict) or hasattr(outputs, "logits"):
        other.logits = logits
    return other
