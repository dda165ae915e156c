"""Measure a model's size and its tokens per second, as its users meet them.

Letters: S sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from hessblocks.models import context_of
from hessblocks.simplify.place import sizes_of
from hessblocks.training import working_seconds

PROMPT, DECODED = 256, 16
"""Tokens of the timed prompt, and tokens that are decoded after it one by one."""
TURNS = 2
"""Timings of each model; the models take turns, and the fastest counts."""


def numbers_of(
    models: Sequence[Any], text: Int[Tensor, "S T"], window: int
) -> list[dict[str, float]]:
    """Count and time models.

    Args:
        models: models of blocks.
        text: text whose tokens are the prompt.
        window: length of a sequence, for the operations of attention.

    Returns:
        For each model: `counts_of`, and tokens a second for the prompt (`prompt`) and one by one
        (`decoding`), of processor time on a CPU.
    """
    rows, limit = text.flatten(), context_of(models[0]) or PROMPT + DECODED
    tokens = rows[: max(1, min(PROMPT, limit - DECODED))][None]
    turns = [[_speeds(model, tokens) for model in models] for _ in range(TURNS)]
    fastest = [map(max, zip(*speeds, strict=True)) for speeds in zip(*turns, strict=True)]
    return [
        counts_of(model, window) | dict(zip(("prompt", "decoding"), speeds, strict=True))
        for model, speeds in zip(models, fastest, strict=True)
    ]


def counts_of(model: Any, window: int) -> dict[str, float]:
    """Count what a model of blocks takes.

    Args:
        model: model of blocks.
        window: length of a sequence, for the operations of attention.

    Returns:
        `parameters` of the whole and `bytes` of its weights; of its layers `layer_parameters`, and
        for each token `operations` and `cache` entries.
    """
    weights = list(model.parameters())
    layers = zip(*(sizes_of(layer, window) for layer in model.model.layers), strict=True)
    return {
        "parameters": sum(weight.numel() for weight in weights),
        "bytes": sum(weight.numel() * weight.element_size() for weight in weights),
        **dict(zip(("layer_parameters", "operations", "cache"), map(sum, layers), strict=True)),
    }


@torch.no_grad()
def _speeds(model: Any, tokens: Int[Tensor, "1 T"]) -> list[float]:
    """Time the prompt, then tokens one by one."""
    read, cache, speeds = tokens, None, list[float]()
    for steps in (1, min(DECODED, tokens.shape[1])):
        start, count = working_seconds(model.device.type), steps * read.shape[1]
        for _ in range(steps):
            output = model(read, past_key_values=cache, use_cache=True)
            read, cache = output.logits[:, -1:].argmax(-1), output.past_key_values
        speeds.append(count / max(working_seconds(model.device.type) - start, 1e-9))
    return speeds


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Time a call: processor time on a CPU."""
    start = working_seconds(device.type)
    run()
    return max(working_seconds(device.type) - start, 1e-9)
