"""Measure the cost of a block: parameters, time and memory of a training and a forward pass.

All blocks take turns, so that other load on the machine affects all of them equally.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from hessblocks.storage import Row
from hessblocks_studies.masked.masked_settings import Pretraining
from hessblocks_studies.masked.peak_memory import peak_bytes
from hessblocks_studies.masked.pretrain import CLIP
from hessblocks_studies.shared import ROUNDS, STEP_TIME, TimedModel, in_turns, measured, timed

ANSWER_TIME = "answer_time"
"""Seconds of a forward pass, measured like the seconds of a training step."""


def cost_rows(
    settings: Pretraining, presets: Sequence[str], rounds: int = ROUNDS
) -> dict[str, list[Row]]:
    """Measure every block on random tokens of one batch.

    Args:
        settings: sizes; the preset is replaced.
        presets: names of blocks.
        rounds: number of measured rounds, after one warm-up round.

    Returns:
        Name → rows: parameters; median seconds of a training step (forward, backward, AdamW) and of
        a forward pass; peak bytes of either, including weights. A median's error is that of normal
        values over the rounds.

    Cost:
        The models of all blocks, with their optimisers, are in memory at the same time.
    """
    blocks = {name: _timed_model(replace(settings, preset=name)) for name in presets}
    runs = {
        (name, kind): work
        for name, each in blocks.items()
        for kind, work in ((STEP_TIME, each.step), (ANSWER_TIME, each.forward_pass))
    }
    times = in_turns(runs, rounds)
    rows: dict[str, list[Row]] = {}
    for name, each in blocks.items():
        weights = list(each.model.state_dict().values())
        counted = {
            "step_memory": peak_bytes(each.step, each.held()),
            "answer_memory": peak_bytes(each.forward_pass, weights),
        }
        rows[name] = [
            measured("parameters", sum(p.numel() for p in each.model.parameters()), "exact"),
            *(timed(kind, times[name, kind], {}) for kind in (STEP_TIME, ANSWER_TIME)),
            *(measured(quantity, value, "counted") for quantity, value in counted.items()),
        ]
    return rows


def _timed_model(settings: Pretraining) -> TimedModel:
    """Build a model with a batch of random tokens, some of them masked."""
    model = settings.model()
    shape = (settings.batch_size, settings.context)
    tokens = torch.randint(settings.vocab_size, shape)
    masked = torch.rand(shape) < settings.mask_share
    return TimedModel(model, tokens, tokens.masked_fill(~masked, -100), CLIP)
