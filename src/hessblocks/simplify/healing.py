"""Heal a simplified model: train its layers towards the original's predictions.

Letters: S sequences, T tokens.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from hessblocks.errors import RunError
from hessblocks.quiet import quiet
from hessblocks.training import GuardedTrainer, quiet_arguments

WARM = 0.1
"""Share of the steps in which the learning rate rises; then it falls linearly to 0."""


class _Healer(GuardedTrainer):
    """Trainer whose loss is the KL divergence from a teacher; without one, the model's own loss."""

    teacher: PreTrainedModel | None = None

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Tensor:
        """Compute the loss in nats per token."""
        if self.teacher is None:
            loss: Tensor = model(**inputs).loss
            return loss
        tokens = inputs["input_ids"]
        with torch.no_grad():
            wanted = self.teacher(input_ids=tokens).logits[:, :-1].log_softmax(-1)
        predicted = model(input_ids=tokens).logits[:, :-1].log_softmax(-1)
        pair = (predicted.flatten(0, 1), wanted.flatten(0, 1))
        return F.kl_div(*pair, log_target=True, reduction="batchmean")


def heal(
    model: PreTrainedModel,
    teacher: PreTrainedModel | None,
    tokens: Int[Tensor, "S T"],
    *,
    steps: int = 100,
    learning_rate: float = 1e-4,
    batch: int = 8,
    seed: int = 0,
) -> PreTrainedModel:
    """Train all layers with AdamW; embeddings and head stay fixed.

    Args:
        model: simplified model, which is not modified.
        teacher: original model, whose predictions are the targets; None: the text is the target.
        tokens: token ids of training text; no measurement uses it.
        steps: number of updates.
        learning_rate: peak learning rate.
        batch: sequences per update.
        seed: seed of the order of sequences.

    Returns:
        A healed copy, in evaluation mode.

    Raises:
        RunError: the loss, a gradient or the model after the last update is not finite.

    Cost: forward and backward pass over steps · batch · T tokens, and a forward pass of the
        teacher.
    """
    healed: Any = copy.deepcopy(model)  # the model shares weights with the original
    healed.requires_grad_(False)
    healed.model.layers.requires_grad_(True)
    if not steps:
        return healed.requires_grad_(True)  # type: ignore[no-any-return]
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder, quiet():
        arguments = quiet_arguments(
            Path(folder),
            healed.device.type,
            max_steps=steps,
            learning_rate=learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=round(WARM * steps),
            weight_decay=0.0,
            per_device_train_batch_size=batch,
            seed=seed,
        )
        trainer = _Healer(model=healed, args=arguments, train_dataset=rows)
        trainer.teacher = teacher
        trainer.train()
    failed = trainer.divergence and f"{trainer.divergence.words} {trainer.divergence.verb}"
    with torch.no_grad():  # the trainer checks before each update, not after the last
        logits = healed(input_ids=tokens[:batch].to(healed.device)).logits
    if not (failed or logits.isfinite().all()):
        failed = "logits are"
    if failed:
        raise RunError(f"healing: the {failed} not finite; try a lower --learning-rate")
    return healed.requires_grad_(True).eval()  # type: ignore[no-any-return]
