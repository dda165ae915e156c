"""How long a training step takes: a few steps as in a run, without anything being written."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from hessblocks.data import Corpus
from hessblocks.errors import RunError
from hessblocks.quiet import quiet
from hessblocks.settings import RunSettings
from hessblocks.training.preparation import build_model
from hessblocks.training.trainer.run_trainer import make_trainer


class StepClock(TrainerCallback):
    """Measures each step; evaluation, checkpoints and what is measured between steps are left out."""

    def __init__(self, device: str) -> None:
        """Measure work on `device`, cpu or cuda, whose last operation a step waits for."""
        self.device = device
        self.last = 0.0
        """Seconds of the last step."""
        self._started = 0.0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Start."""
        self._started = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Stop."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.last = time.perf_counter() - self._started


WARM = 2
"""Steps that are not counted."""
COUNTED = 5
"""Steps that are."""
RATE = 1e-6
"""Learning rate: without its warm-up a model might diverge at that of its run."""


class Stopwatch(StepClock):
    """Keeps the seconds of every step."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.seconds: list[float] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Stop; nothing is logged, evaluated or saved."""
        super().on_step_end(args, state, control)
        self.seconds.append(self.last)
        control.should_log = control.should_evaluate = control.should_save = False


def step_seconds(
    settings: RunSettings, corpus: Corpus, model: PreTrainedModel | None = None
) -> list[float]:
    """The seconds of `COUNTED` steps, the first ones of a run.

    Args:
        settings: what is trained, and how.
        corpus: to train on.
        model: trained in place; by default that of the settings, which is thrown away.

    Raises:
        RunError: the loss or a gradient is not finite.
    """
    training = replace(settings.training, steps=WARM + COUNTED, learning_rate=RATE)
    brief = replace(settings, training=training)
    watch = Stopwatch(settings.device)
    if model is None:
        model = build_model(brief.model, brief.preset, corpus.vocab_size, brief.seed)
    with tempfile.TemporaryDirectory() as folder, quiet():
        trainer = make_trainer(model, brief, corpus, Path(folder), [watch], resumed=True)
        trainer.train()
    if trainer.divergence:
        raise RunError(
            f"{settings.preset}: its pace cannot be measured, since the {trainer.divergence.words} "
            f"{trainer.divergence.verb} not finite."
        )
    return watch.seconds[WARM:]
