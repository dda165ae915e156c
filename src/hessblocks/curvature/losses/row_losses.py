"""Losses as functions of the logits, summed over valid rows: value, gradient, curvature.

Everything is computed in the dtype of the logits; the model's own loss, which may cast to float32,
is never used. Letters: p probabilities, u a direction in logit space, N rows, V classes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.conventions import IGNORED
from hessblocks.curvature.closed import ClosedForms, Watch
from hessblocks.curvature.losses.batch_loss import BatchLoss, LossDerivatives, Root, RowLoss
from hessblocks.curvature.losses.batches import Batch, unpack
from hessblocks.curvature.losses.lazy_logits import rows_together
from hessblocks.errors import ArgumentError

SHIFTED_LABELS_MIN = 8
"""Labels that are the next input, and not their own, from which on this is meant."""
CERTAIN = 1e4
"""A logit so far above zeros that its probability is 1 to all digits."""
ROUNDING = 1e-5
"""Share of the largest curvature that may be rounding."""

LossFunction = Callable[[Any, Any], Float[Tensor, "..."]]
"""From the model's outputs and the batch to the losses of the valid tokens or rows."""


class CrossEntropy(RowLoss):
    """Cross-entropy −log p of the target, over classes on the last axis.

    Its curvature is the closed form p∘u − p (p·u) of each row.
    """

    def __init__(self, targets: Shaped[Tensor, "..."]) -> None:
        """Hold `targets`, shaped as the logits without their last axis; IGNORED does not count.

        Raises:
            ArgumentError: they are no whole numbers.
        """
        if targets.is_floating_point() or targets.dtype == torch.bool:
            raise ArgumentError(f"labels: expected classes as whole numbers, got {targets.dtype}")
        self.targets = targets.long()

    @property
    def valid(self) -> int:
        """Count the labels that are not ignored."""
        return int((self.targets != IGNORED).sum())

    def total(self, logits: Float[Tensor, "... V"]) -> float:
        """See `BatchLoss`."""
        check_targets(self.targets, tuple(logits.shape))
        rows, targets = logits.flatten(0, -2), self.targets.flatten()
        step = rows_together(rows.shape[1])
        pieces = zip(rows.split(step), targets.split(step), strict=True)
        return math.fsum(
            float(F.cross_entropy(part, some, ignore_index=IGNORED, reduction="sum"))
            for part, some in pieces
        )

    def counted(self, rows: tuple[int, ...], classes: int) -> Int[Tensor, " N"]:
        """See `RowLoss`."""
        check_targets(self.targets, (*rows, classes))
        return (self.targets.flatten() != IGNORED).nonzero()[:, 0]

    def some(self, rows: slice | Int[Tensor, " N"]) -> CrossEntropy:
        """See `RowLoss`."""
        return CrossEntropy(self.targets.flatten()[rows])

    def at(
        self, logits: Float[Tensor, "... V"], share: float
    ) -> tuple[Float[Tensor, "... V"], Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]]:
        """See `RowLoss`."""
        targets = self.targets[..., None]
        shares = share * (targets != IGNORED).to(logits.dtype)
        # in place all along: logits are the largest tensor here, and the caller is done with them
        shared = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
        shared.mul_(shares / shared.sum(-1, keepdim=True))  # p, times the share of its row
        # IGNORED is negative: it is moved to class 0, whose share is 0
        gradient = shared.scatter_add(-1, targets.clamp(min=0), -shares)

        def curvature(direction: Tensor) -> Tensor:
            inner = shared[..., None, :] @ direction[..., None]
            return direction.sub_(inner[..., 0] / share).mul_(shared)

        return gradient, curvature

    def root(self, logits: Float[Tensor, "... V"], share: float) -> Root:
        """Return L ε = √p∘ε − p ⟨√p, ε⟩ of each row, since L Lᵀ = diag(p) − ppᵀ."""
        shares = math.sqrt(share) * (self.targets.flatten() != IGNORED).to(logits.dtype)[:, None]
        roots = logits.softmax(-1).sqrt_().flatten(0, -2)

        def times_root(signs: Tensor) -> Tensor:
            found = torch.empty_like(roots)
            flat = signs.flatten(0, -2)
            step = rows_together(roots.shape[1])
            for part in (slice(start, start + step) for start in range(0, len(roots), step)):
                weighted = roots[part] * flat[part]
                inner = weighted.sum(-1, keepdim=True)
                torch.addcmul(weighted, roots[part].square(), inner, value=-1, out=found[part])
                found[part].mul_(shares[part])
            return found.view_as(logits)

        return times_root


class Idle(BatchLoss):
    """Zero, as a function of any logits."""

    valid = 0

    def total(self, logits: Float[Tensor, "..."]) -> float:
        """See `BatchLoss`."""
        return 0.0

    def derivatives(self, logits: Float[Tensor, "..."], share: float) -> LossDerivatives:
        """See `BatchLoss`."""
        return LossDerivatives(
            total=0.0, gradient=torch.zeros_like(logits), curvature=torch.zeros_like
        )

    def root(self, logits: Float[Tensor, "..."], share: float) -> Root:
        """See `BatchLoss`."""
        return lambda signs: torch.zeros_like(logits)


@dataclass(frozen=True)
class Differentiated(BatchLoss):
    """Loss that autograd differentiates twice, by the logits alone."""

    losses: Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
    """From the logits to the losses of the valid rows, or to their sum."""
    count: Callable[[], float]
    """What counts in the mean."""
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
        with torch.enable_grad(), ClosedForms(Watch(), swap=False):
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
        """A of each row, whose loss is A log Σ exp(f) − ⟨a, f⟩: the gradient is A p − a at every f.

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
    """Curvatures that are at least 0, rounding forgiven."""
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
        function: from outputs and batch to one loss a valid row.
        batch: what it is given, as it came.
        outputs: of the model.
        logits: those among the outputs.

    Returns:
        The loss as a function of the logits alone; it refuses a mean, and losses of labels that are
        to be ignored.
    """

    def losses(logits: Tensor) -> Tensor:
        losses = function(_with_logits(outputs, logits), batch.raw)
        if losses.ndim == 0:
            raise ArgumentError(
                "loss: expected one loss for each valid token or row, got their mean or sum; "
                "leave it out (reduction='none')"
            )
        return losses

    def count() -> int:
        number = losses(logits.detach()).numel()
        if _counts_ignored(number, batch.labels):
            raise ArgumentError(
                f"loss: the callable returned {number:,} losses, those of labels {IGNORED} among "
                f"them, which would count in the mean; return losses[labels != {IGNORED}]"
            )
        return number

    return Differentiated(losses, count)


def _counts_ignored(number: int, labels: Tensor | None) -> bool:
    """Tell whether losses, one a label or all but the first of a row, include ignored ones."""
    if labels is None or labels.is_floating_point():
        return False
    counted = labels != IGNORED
    moved = counted[:, 1:] if labels.ndim > 1 else counted
    valid = [int(some.sum()) for some in (counted, moved) if some.numel() == number]
    return bool(valid) and max(valid) < number and int(counted.sum()) != number


def _with_logits(outputs: Any, logits: Tensor) -> Any:
    """The same outputs with other logits."""
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


def check_targets(targets: Int[Tensor, "..."], logits: tuple[int, ...]) -> None:
    """Require logits of a shape that cross-entropy can be taken of.

    Raises:
        ArgumentError: shapes or classes do not fit, or there is one class.
    """
    if logits[-1] == 1:
        raise ArgumentError(
            "loss: the model has one output, whose cross-entropy is 0 whatever the label; give "
            "loss='regression'"
        )
    if targets.shape != logits[:-1]:
        raise ArgumentError(
            f"labels: expected shape {logits[:-1]} to go with logits of shape "
            f"{logits}, got {tuple(targets.shape)}"
        )
    counted = targets[targets != IGNORED]
    if counted.numel() and not 0 <= int(counted.min()) <= int(counted.max()) < logits[-1]:
        raise ArgumentError(
            f"labels: expected classes from 0 to {logits[-1] - 1} (or {IGNORED} to ignore), "
            f"got {int(counted.min())} to {int(counted.max())}"
        )


def causal_targets(batch: Batch) -> Int[Tensor, "sequences tokens"]:
    """Shift labels to the next token at each position; the last position is ignored.

    Without labels, padding is neither predicted nor predicted from.

    Returns:
        One label a position.

    Raises:
        ArgumentError: there is not one token a position, tokens could be of several names, or
            labels are moved by one place already.
    """
    if batch.labels is None and len(batch.ids) > 1:
        raise ArgumentError(
            f"batches: {' and '.join(map(repr, batch.ids))} may all be the tokens that causal-lm "
            "predicts; name them input_ids, or give them as labels too"
        )
    found = batch.inputs if batch.labels is None else batch.labels
    if found.ndim != 2 or found.is_floating_point():
        raise ArgumentError(
            "batches: causal-lm needs token ids, as labels or as the inputs, of shape (sequences, "
            f"tokens); got {found.dtype} with {found.ndim} axes"
        )
    if _moved(batch.inputs, batch.labels):
        raise ArgumentError(
            "labels: already moved by one place, each is the next input, and causal-lm would move "
            "them again; give loss='classification' with them, or the inputs themselves as labels"
        )
    # labels are moved here, as in transformers: at each position the next token
    targets = F.pad(found[:, 1:].long(), (0, 1), value=IGNORED)
    mask = batch.attention_mask
    if batch.labels is not None or mask is None:
        return targets
    if mask.shape != found.shape:
        raise ArgumentError(
            f"batches: an attention_mask with {mask.ndim} axes does not say which tokens are "
            f"padding; give labels, {IGNORED} where there is nothing to predict"
        )
    real = mask != 0
    return targets.masked_fill(~real | ~F.pad(real[:, 1:], (0, 1)), IGNORED)


def causal_labels(batch: Mapping[str, Any]) -> Int[Tensor, "sequences tokens"]:
    """Make the labels with which a causal language model has the loss `causal-lm` of a batch.

    Returns:
        The batch's own labels, or its tokens without padding.

    Raises:
        ArgumentError: there is not one token a position.
    """
    if "labels" in batch:
        labels: Tensor = batch["labels"]
        return labels
    return F.pad(causal_targets(unpack(batch, None))[:, :-1], (1, 0), value=IGNORED)


def _moved(inputs: Tensor, labels: Tensor | None) -> bool:
    """Tell whether labels are shifted already: all are the next input, too many for chance."""
    if labels is None or labels.shape != inputs.shape:
        return False
    own, following, labels = inputs[:, :-1], inputs[:, 1:], labels[:, :-1]
    counted = labels != IGNORED
    others = int((counted & (labels != own)).sum())
    return others >= SHIFTED_LABELS_MIN and not bool((counted & (labels != following)).any())


def given_labels(batch: Batch) -> Shaped[Tensor, "..."]:
    """Return the batch's own labels.

    Returns:
        The labels, in whatever shape the batch has them.

    Raises:
        ArgumentError: it has none.
    """
    if batch.labels is None:
        raise ArgumentError("batches: this loss needs labels; give dicts with `labels` or pairs")
    return batch.labels
