"""Measure a model's size and its tokens per second, as its users meet them.

Letters: S sequences, T tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from hessblocks.models import context_of
from hessblocks.simplify.place import sizes_of

PROMPT, DECODED = 256, 16
"""Tokens of the timed prompt, and tokens that are decoded after it one by one."""
TURNS = 2
"""Timings of each model; the models take turns, and the fastest counts."""


def numbers_of(models: Sequence[Any], text: Int[Tensor, "S T"]) -> list[dict[str, float]]:
    """Count and time models.

    Args:
        models: models of blocks.
        text: text whose tokens are the prompt.

    Returns:
        For each model: `parameters` of the whole, `layer_parameters`, `bytes` of the weights,
        `cache` entries a token, and tokens a second for the prompt (`prompt`) and one by one
        (`decoding`), of processor time on a CPU.
    """
    rows, limit = text.flatten(), context_of(models[0]) or PROMPT + DECODED
    tokens = rows[: max(1, min(PROMPT, limit - DECODED))][None]
    found: list[list[tuple[float, float]]] = [[] for _ in models]
    for _ in range(TURNS):
        for model, own in zip(models, found, strict=True):
            own.append(_speeds(model, tokens))
    return [
        {**_counts(model), "prompt": max(p for p, _ in own), "decoding": max(d for _, d in own)}
        for model, own in zip(models, found, strict=True)
    ]


def _counts(model: Any) -> dict[str, float]:
    weights = list(model.parameters())
    own = [sizes_of(layer, 1) for layer in model.model.layers]
    return {
        "parameters": sum(weight.numel() for weight in weights),
        "layer_parameters": sum(one[0] for one in own),
        "bytes": sum(weight.numel() * weight.element_size() for weight in weights),
        "cache": sum(one[2] for one in own),
    }


@torch.no_grad()
def _speeds(model: Any, tokens: Int[Tensor, "1 T"]) -> tuple[float, float]:
    """Time the prompt, then tokens one by one."""
    state: dict[str, Any] = {"tokens": tokens, "cache": None}

    def step() -> None:
        output = model(state["tokens"], past_key_values=state["cache"], use_cache=True)
        state["cache"] = output.past_key_values
        state["tokens"] = output.logits[:, -1:].argmax(-1)

    prompt = _seconds(step, model.device)

    def decode() -> None:
        for _ in range(min(DECODED, tokens.shape[1])):
            step()

    decoding = _seconds(decode, model.device)
    return tokens.shape[1] / prompt, min(DECODED, tokens.shape[1]) / decoding


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    start = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(clock() - start, 1e-9)
