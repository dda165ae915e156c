"""What an update costs: its working seconds, over a few steps as in a run, and its floating-point operations."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback, TrainerState

from hessblocks.data import Corpus
from hessblocks.errors import RunError
from hessblocks.quiet import quiet
from hessblocks.settings import ModelSettings, RunSettings
from hessblocks.training.preparation import build_model, model_without_weights
from hessblocks.training.trainer.run_trainer import make_trainer

WARM = 2
"""Steps that are not counted."""
COUNTED = 5
"""Steps that are."""
RATE = 1e-6
"""Learning rate: without its warm-up a model might diverge at that of its run."""


def working_seconds(device: str) -> float:
    """A clock that other programs hardly move, where there is one.

    Args:
        device: cpu or cuda.

    Returns:
        Seconds of processor time of all threads of this process; on cuda those of the clock on the wall, once
        the device has done what it was given.
    """
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


class StepClock(TrainerCallback):
    """Measures each step; evaluation, checkpoints and what is measured between steps are left out."""

    def __init__(self, device: str) -> None:
        """Measure work on `device`, cpu or cuda."""
        self.device = device
        self.each: list[float] = []
        """Seconds of each step so far."""
        self._started = 0.0

    def on_step_begin(self, *_: Any, **given: Any) -> None:
        """Start."""
        self._started = working_seconds(self.device)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **given: Any) -> None:
        """Stop."""
        self.each.append(working_seconds(self.device) - self._started)


def step_seconds(settings: RunSettings, corpus: Corpus) -> list[float]:
    """The seconds of `COUNTED` steps, the first ones of a run; nothing is written.

    Args:
        settings: what is trained, and how.
        corpus: to train on.

    Returns:
        Seconds of each step that counts.

    Raises:
        RunError: the loss or a gradient is not finite.
    """
    training = replace(settings.training, steps=WARM + COUNTED, learning_rate=RATE)
    brief = replace(settings, training=training, report_to="none")
    clock = StepClock(settings.device)
    model = build_model(brief.model, brief.preset, corpus.vocab_size, brief.seed)
    with tempfile.TemporaryDirectory() as folder, quiet():
        trainer = make_trainer(model, brief, corpus, Path(folder))
        trainer.add_callback(clock)
        trainer.train()
    if trainer.divergence:
        raise RunError(
            f"{settings.preset}: its pace cannot be measured, since the {trainer.divergence.words} "
            f"{trainer.divergence.verb} not finite."
        )
    return clock.each[WARM:]


def update_flops(settings: RunSettings, vocab_size: int) -> int:
    """Operations of the matrix products of one update, forward and backward; an addition counts too.

    They are counted on a model without memory. Attention counts in full: tokens × tokens scores, though
    a fused kernel may skip the masked half. Norms, activations and the optimiser are left out; the running
    means of shaped attention are products with a small triangle and count, with less than 1 % of a layer.

    Args:
        settings: of the run.
        vocab_size: entries of the vocabulary.

    Returns:
        Operations of all passes of the update.

    Source:
        `torch.utils.flop_counter.FlopCounterMode`.
    """
    sizes = replace(settings.model, slots=tuple(settings.model.slots))  # a list of them has no hash
    of_one = _sequence_flops(sizes, settings.preset, vocab_size)
    return of_one * settings.training.batch_size


@cache
def _sequence_flops(sizes: ModelSettings, preset: str, vocab_size: int) -> int:
    """Those of one sequence, counted once: seeds differ in none."""
    model = model_without_weights(sizes, preset, vocab_size)
    tokens = torch.zeros(1, sizes.context, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(input_ids=tokens, labels=tokens).loss.backward()
    count: int = counter.get_total_flops()
    return count
