"""Cross-entropy of rows of logits in closed form, and its labels.

Everything is computed in the logits' dtype. The loss that the model computes, perhaps in float32,
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
"""From this many labels on that equal the next input, not their own, labels count as shifted."""


class CrossEntropy(BatchLoss):
    """Cross-entropy −log p of the target, over classes on the last axis.

    Its Hessian-vector product is p∘u − p (p·u) for each row. The loss is a sum over rows, so that
    it can be computed a few rows at a time.
    """

    def __init__(self, targets: Shaped[Tensor, "..."]) -> None:
        """Store `targets`, shaped as the logits without their last axis; IGNORED marks no label.

        Raises:
            ArgumentError: the targets are not integers.
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
            float(F.cross_entropy(part, labels, ignore_index=IGNORED, reduction="sum"))
            for part, labels in pieces
        )

    def counted_rows(self, rows: tuple[int, ...], classes: int) -> Int[Tensor, " N"]:
        """Find the rows whose label is not ignored.

        Args:
            rows: shape of the logits without their last axis.
            classes: V.

        Returns:
            Indices of these rows in the flattened logits.
        """
        check_targets(self.targets, (*rows, classes))
        return (self.targets.flatten() != IGNORED).nonzero()[:, 0]

    def of_rows(self, rows: slice | Int[Tensor, " N"]) -> Self:
        """Return the loss of these flattened rows alone."""
        return type(self)(self.targets.flatten()[rows])

    def derivatives(self, logits: Float[Tensor, "... V"], share: float) -> LossDerivatives:
        """See `BatchLoss`."""
        check_targets(self.targets, tuple(logits.shape))
        total, gradient, curvature = self.derivatives_in_place(logits.clone(), share)
        return LossDerivatives(
            total=total, gradient=gradient, curvature=lambda u: curvature(u.clone())
        )

    def derivatives_in_place(
        self, logits: Float[Tensor, "... V"], share: float
    ) -> tuple[
        float, Float[Tensor, "... V"], Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
    ]:
        """Compute sum, gradient and curvature in place: `logits` and directions are overwritten.

        Returns:
            The summed loss, gradient r, and u ↦ H_ℓ u, where u may have leading batch axes.
        """
        targets = self.targets[..., None]
        counted = targets != IGNORED
        shares = share * counted.to(logits.dtype)
        # IGNORED is negative and no valid index; clamp to class 0, where such a row adds 0
        labels = targets.clamp(min=0)
        # in place, since the logits are the largest tensor and the caller no longer needs them
        shared = logits.sub_(logits.amax(-1, keepdim=True))
        chosen = shared.gather(-1, labels)
        sums = shared.exp_().sum(-1, keepdim=True)
        total = float((sums.log() - chosen)[counted].sum()) * share
        shared.mul_(shares / sums)  # p, times the share of its row
        gradient = shared.scatter_add(-1, labels, -shares)

        def curvature(direction: Tensor) -> Tensor:
            inner = torch.linalg.vecdot(shared, direction)[..., None]
            return direction.sub_(inner / share).mul_(shared)

        return total, gradient, curvature

    def root(self, logits: Float[Tensor, "... V"], share: float) -> Root:
        """Return ε ↦ √p∘ε − p ⟨√p, ε⟩ of each row, times √`share`; L Lᵀ = diag(p) − ppᵀ."""
        shares = math.sqrt(share) * (self.targets.flatten() != IGNORED).to(logits.dtype)[:, None]
        roots = logits.softmax(-1).sqrt_().flatten(0, -2)

        def times_root(signs: Tensor) -> Tensor:
            product = torch.empty_like(roots)
            flat = signs.flatten(0, -2)
            step = rows_together(roots.shape[1])
            for part in (slice(start, start + step) for start in range(0, len(roots), step)):
                weighted = roots[part] * flat[part]
                inner = weighted.sum(-1, keepdim=True)
                torch.addcmul(weighted, roots[part].square(), inner, value=-1, out=product[part])
                product[part].mul_(shares[part])
            return product.view_as(logits)

        return times_root


def check_targets(targets: Int[Tensor, "..."], logits: tuple[int, ...]) -> None:
    """Check that targets and logits fit cross-entropy.

    Raises:
        ArgumentError: shapes or class numbers do not fit, or there is only one class.
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
    """Shift labels by one: position t gets the label of t + 1, the last position IGNORED.

    Without labels, the input tokens are the labels, and padding is neither predicted nor a context.

    Returns:
        One label per position.

    Raises:
        ArgumentError: there is not one token per position, several inputs may be the tokens, or
            the labels are shifted already.
    """
    if batch.labels is None and len(batch.ids) > 1:
        raise ArgumentError(
            f"batches: {' and '.join(map(repr, batch.ids))} may all be the tokens that causal-lm "
            "predicts; name them input_ids, or give them as labels too"
        )
    labels = batch.inputs if batch.labels is None else batch.labels
    if labels.ndim != 2 or labels.is_floating_point():
        raise ArgumentError(
            "batches: causal-lm needs token ids, as labels or as the inputs, of shape (sequences, "
            f"tokens); got {labels.dtype} with {labels.ndim} axes"
        )
    if _moved(batch.inputs, batch.labels):
        raise ArgumentError(
            "labels: each is the next input token already, and causal-lm would shift them once "
            "more; give loss='classification' with them, or the inputs themselves as labels"
        )
    # as in transformers, the loss shifts the labels
    targets = F.pad(labels[:, 1:].long(), (0, 1), value=IGNORED)
    mask = batch.attention_mask
    if batch.labels is not None or mask is None:
        return targets
    if mask.shape != labels.shape:
        raise ArgumentError(
            f"batches: an attention_mask with rows of shape {tuple(mask.shape[1:])} does not say "
            f"which of {labels.shape[1]} tokens are padding; give labels, {IGNORED} where there is "
            "nothing to predict"
        )
    real = mask != 0
    return targets.masked_fill(~real | ~F.pad(real[:, 1:], (0, 1)), IGNORED)


def causal_labels(batch: Mapping[str, Any]) -> Int[Tensor, "sequences tokens"]:
    """Make labels, not shifted, with which transformers computes the loss `causal-lm` of a batch.

    Returns:
        The batch's labels if it has any; else its tokens, with IGNORED at padding.

    Raises:
        ArgumentError: there is not one token per position.
    """
    if "labels" in batch:
        labels: Tensor = batch["labels"]
        return labels
    return F.pad(causal_targets(unpack(batch, None))[:, :-1], (1, 0), value=IGNORED)


def _moved(inputs: Tensor, labels: Tensor | None) -> bool:
    """Tell whether all labels equal the next input, and so many that it is no coincidence."""
    if labels is None or labels.shape != inputs.shape:
        return False
    current, following, labels = inputs[:, :-1], inputs[:, 1:], labels[:, :-1]
    counted = labels != IGNORED
    others = int((counted & (labels != current)).sum())
    return others >= SHIFTED_LABELS_MIN and not bool((counted & (labels != following)).any())


def given_labels(batch: Batch) -> Shaped[Tensor, "..."]:
    """Return the batch's labels.

    Returns:
        The labels, in the batch's shape.

    Raises:
        ArgumentError: the batch has no labels, or complex ones.
    """
    if batch.labels is None:
        raise ArgumentError("batches: this loss needs labels; give dicts with `labels` or pairs")
    if batch.labels.is_complex():
        raise ArgumentError("labels: complex numbers; give torch.view_as_real(labels)")
    return batch.labels
