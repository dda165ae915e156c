"""Cross-entropy of rows of logits in closed form, and the labels that it takes.

Everything is computed in the dtype of the logits; the model's own loss, which may cast to float32,
is never used. Letters: p probabilities, u a direction in logit space, N rows, V classes.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hessblocks.conventions import IGNORED
from hessblocks.curvature.losses.batch_loss import BatchLoss, LossDerivatives, Root
from hessblocks.curvature.losses.batches import Batch, unpack
from hessblocks.curvature.losses.lazy_logits import rows_together
from hessblocks.errors import ArgumentError

SHIFTED_LABELS_MIN = 8
"""Labels that are the next input, and not their own, from which on this is meant."""


class CrossEntropy(BatchLoss):
    """Cross-entropy −log p of the target, over classes on the last axis.

    Its curvature is the closed form p∘u − p (p·u) of each row. It is a sum over rows of logits, and
    can be cut into them.
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
        """Flatten all rows, and select those that count.

        Args:
            rows: shape of the logits without their last axis.
            classes: V.

        Returns:
            Their places.
        """
        check_targets(self.targets, (*rows, classes))
        return (self.targets.flatten() != IGNORED).nonzero()[:, 0]

    def some(self, rows: slice | Int[Tensor, " N"]) -> Self:
        """Select the loss of some rows."""
        return type(self)(self.targets.flatten()[rows])

    def derivatives(self, logits: Float[Tensor, "... V"], share: float) -> LossDerivatives:
        """See `BatchLoss`."""
        total = self.total(logits) * share
        gradient, curvature = self.at(logits.clone(), share)
        return LossDerivatives(
            total=total, gradient=gradient, curvature=lambda u: curvature(u.clone())
        )

    def at(
        self, logits: Float[Tensor, "... V"], share: float
    ) -> tuple[Float[Tensor, "... V"], Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]]:
        """Compute gradient and curvature, written over `logits` and over the directions.

        Returns:
            r and u ↦ H_ℓ u, whose directions may have further axes in front.
        """
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
        One label per position.

    Raises:
        ArgumentError: there is not one token per position, tokens could be of several names, or
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
        ArgumentError: there is not one token per position.
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
