"""How long a training step takes: a few steps as in a run, without anything being written."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hessblocks.data import Corpus
from hessblocks.training.processes import Order
from hessblocks.training.quiet import quiet
from hessblocks.training.trainer import make_trainer

WARM = 2
"""Steps that are not counted."""
COUNTED = 5
"""Steps that are."""


class Stopwatch(TrainerCallback):
    """The seconds of each step: forward, backward, update."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: list[float] = []
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
        self.seconds.append(time.perf_counter() - self._started)
        control.should_log = control.should_evaluate = control.should_save = False


def step_seconds(order: Order, corpus: Corpus) -> list[float]:
    """The seconds of `COUNTED` steps, the first ones of a run; its model is thrown away.

    Args:
        order: whose settings say what is trained.
        corpus: to train on.
    """
    settings = order.settings
    brief = replace(settings, training=replace(settings.training, steps=WARM + COUNTED))
    watch = Stopwatch(settings.device)
    model = brief.model.build(brief.preset, corpus.vocab_size, brief.seed)
    with tempfile.TemporaryDirectory() as folder, quiet():
        make_trainer(model, brief, corpus, Path(folder), [watch], resumed=True).train()
    return watch.seconds[WARM:]
