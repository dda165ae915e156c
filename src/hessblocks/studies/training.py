"""Training for a study: the Trainer of every run, its losses kept as rows and nothing on disk."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from hessblocks.data import Corpus
from hessblocks.studies.point import Row
from hessblocks.training import RunSettings
from hessblocks.training.quiet import quiet
from hessblocks.training.trainer import RunTrainer, make_trainer

LOSS = "validation_loss"
"""Nats per token on held-out windows; empty where training diverged."""
Observer = Callable[[nn.Module, int], list[Row]]
"""From the model and the step to rows of what is seen there."""


def train(
    model: PreTrainedModel, settings: RunSettings, corpus: Corpus, observer: Observer | None = None
) -> list[Row]:
    """Train `model` in place.

    Args:
        model: a causal language model.
        settings: how it is trained; the model is not built from them.
        corpus: training and held-out tokens.
        observer: looks at the model whenever a validation loss is taken and finite, before the first step too.

    Returns:
        Rows with step, tokens, quantity and value; a run whose loss is no longer a number ends there,
        with an empty last value.
    """
    watch = _Watch(settings, observer)
    with tempfile.TemporaryDirectory() as unused, quiet():
        watch.trainer = make_trainer(model, settings, corpus, Path(unused), [watch], resumed=False)
        watch.trainer.train()
    return watch.rows


class _Watch(TrainerCallback):
    """Asks for validation losses, keeps them, and ends a run that diverged."""

    trainer: RunTrainer
    """Whose callback this is; set before training."""

    def __init__(self, settings: RunSettings, observer: Observer | None) -> None:
        self.settings = settings
        self.observer = observer
        self.rows: list[Row] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        training = self.settings.training
        last = state.global_step == training.steps
        control.should_log = control.should_save = False
        control.should_evaluate = last or state.global_step % training.evaluate_every == 0
        if self.trainer.divergence:
            control.should_evaluate = False
            self.rows.append(self._loss(state.global_step, None))

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        loss, step = given["metrics"]["eval_loss"], state.global_step
        self.rows.append(self._loss(step, loss if math.isfinite(loss) else None))
        if self.observer and math.isfinite(loss):
            seen = self.observer(given["model"], step)
            self.rows += [{**self._place(step), **row} for row in seen]

    def _loss(self, step: int, value: float | None) -> Row:
        return {**self._place(step), "quantity": LOSS, "value": value, "method": "measured"}

    def _place(self, step: int) -> Row:
        each = self.settings.training.batch_size * self.settings.model.context
        return {"step": step, "tokens": step * each}
