"""What a block costs: parameters, time of a training step and of an answer, memory of both.

All blocks take turns, so that whatever else the machine does strikes all of them alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hessblocks.training.masked.masked_settings import Pretraining
from hessblocks.training.masked.pretrain import CLIP
from hessblocks.training.trainer import peak_bytes, working_seconds

ROUNDS = 12
"""Turns of every block, after one that warms up."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one block costs at one size."""

    preset: str
    """Name of the block."""
    parameters: int
    """Trainable numbers of the masked language model."""
    step_times: tuple[float, ...]
    """Working seconds of a training step (forward, backward, AdamW), turn by turn."""
    answer_times: tuple[float, ...]
    """Working seconds of a forward pass over the same batch, turn by turn."""
    step_memory: int
    """Most bytes alive in a training step: tensors, weights, gradients, optimiser's state."""
    answer_memory: int
    """Most bytes alive in a forward pass, weights included."""

    @property
    def step_time(self) -> float:
        """Median seconds of a training step."""
        return statistics.median(self.step_times)

    @property
    def answer_time(self) -> float:
        """Median seconds of a forward pass."""
        return statistics.median(self.answer_times)


def costs(settings: Pretraining, presets: Sequence[str], rounds: int = ROUNDS) -> dict[str, Cost]:
    """Measure every block on random tokens of one batch.

    Args:
        settings: sizes; its preset is replaced.
        presets: names of blocks.
        rounds: turns that count.

    Returns:
        Name → cost.
    """
    works = {name: _Work(replace(settings, preset=name)) for name in presets}
    times: dict[str, list[list[float]]] = {name: [[], []] for name in presets}
    for turn in range(rounds + 1):
        for name, work in works.items():
            for kind, run in enumerate((work.step, work.answer)):
                seconds = _seconds(run)
                if turn:
                    times[name][kind].append(seconds)
    return {
        name: Cost(
            preset=name,
            parameters=sum(parameter.numel() for parameter in work.model.parameters()),
            step_times=tuple(times[name][0]),
            answer_times=tuple(times[name][1]),
            step_memory=peak_bytes(work.step, work.held()),
            answer_memory=peak_bytes(work.answer, list(work.model.state_dict().values())),
        )
        for name, work in works.items()
    }


class _Work:
    """A model with its optimiser and a batch; bf16 on CUDA, as pretraining has it."""

    def __init__(self, settings: Pretraining) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = settings.model()
        self.model = model.to(device)
        self.precision = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        shape = (settings.batch_size, settings.context)
        self.tokens = torch.randint(settings.vocab_size, shape, device=device)
        masked = torch.rand(shape, device=device) < settings.mask_share
        self.labels = self.tokens.masked_fill(~masked, -100)

    def step(self) -> None:
        """A training step; the gradients go at its end."""
        self.model.train()
        with self.precision:
            loss = self.model(input_ids=self.tokens, labels=self.labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimiser.step()
        self.optimiser.zero_grad()

    @torch.no_grad()
    def answer(self) -> None:
        """A forward pass."""
        self.model.eval()
        with self.precision:
            self.model(input_ids=self.tokens)

    def held(self) -> list[torch.Tensor]:
        """What is there before a step: weights, buffers, the optimiser's averages."""
        states = [v for state in self.optimiser.state.values() for v in state.values()]
        return [*self.model.state_dict().values(), *(v for v in states if torch.is_tensor(v))]


def _seconds(run: Callable[[], None]) -> float:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = working_seconds(device)
    run()
    return working_seconds(device) - start
