"""Measure the cost of a block: parameters, time and memory of a training step and a forward pass.

All blocks take turns, so that whatever else the machine does strikes all of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hessblocks.training import peak_bytes
from hessblocks_studies.masked.masked_settings import Pretraining
from hessblocks_studies.masked.pretrain import CLIP
from hessblocks_studies.shared import ROUNDS, TimedModel, in_turns


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


def costs(settings: Pretraining, presets: Sequence[str], rounds: int = ROUNDS) -> dict[str, Cost]:
    """Measure every block on random tokens of one batch.

    Args:
        settings: sizes; its preset is replaced.
        presets: names of blocks.
        rounds: turns that count, after one that warms up.

    Returns:
        Name → cost.

    Cost:
        The models of all blocks, with their optimisers, are in memory at once.
    """
    timed = {name: _timed_model(replace(settings, preset=name)) for name in presets}
    runs = {
        (name, kind): work
        for name, each in timed.items()
        for kind, work in (("step", each.step), ("forward", each.forward_pass))
    }
    times = in_turns(runs, rounds)
    return {
        name: Cost(
            preset=name,
            parameters=sum(parameter.numel() for parameter in each.model.parameters()),
            step_times=tuple(times[name, "step"]),
            answer_times=tuple(times[name, "forward"]),
            step_memory=peak_bytes(each.step, each.held()),
            answer_memory=peak_bytes(each.forward_pass, list(each.model.state_dict().values())),
        )
        for name, each in timed.items()
    }


def _timed_model(settings: Pretraining) -> TimedModel:
    """A model and a batch of random tokens, some of them masked."""
    model = settings.model()
    shape = (settings.batch_size, settings.context)
    tokens = torch.randint(settings.vocab_size, shape)
    masked = torch.rand(shape) < settings.mask_share
    return TimedModel(model, tokens, tokens.masked_fill(~masked, -100), CLIP)
