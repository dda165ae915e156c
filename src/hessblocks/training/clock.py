"""How long the steps of a Trainer take: forward, backward, update."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


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
