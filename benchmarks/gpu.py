"""Measure a CUDA device in nine minutes: steps, products, a map, decoding, memory, kernels.

Run `python -m benchmarks gpu`; `--only speed` takes four minutes. Each part has a share of the
time; what no longer fits, does not fit the memory or fails is left out, said, and stands in the
results with its reason. Figures: `results/gpu_*.png`.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import _gpu_parts as parts
from benchmarks._gpu_clock import Clock
from benchmarks._gpu_figures import draw
from benchmarks.blocks import Sizes

LIMIT = 510.0
"""Seconds; imports, figures and files have the rest of the nine minutes."""
SPEED_LIMIT = 225.0
"""Seconds of `--only speed`."""
PUBLISHED = Sizes(depth=18, width=768, heads=12, vocab_size=50_000, context=128, batch=128)
"""The blocks of the simplified-blocks paper in length and width, 16,384 tokens a step."""
DECODED = replace(PUBLISHED, context=256, batch=1)
"""A sequence that is decoded."""
SMALL = Sizes(depth=4, width=256, heads=4, vocab_size=1024, context=128, batch=1)
"""Of the products against context."""
GPT2 = Sizes(depth=12, width=768, heads=12, vocab_size=50_257, context=512, batch=1)
"""GPT-2 small at its own vocabulary."""
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384)


def main() -> dict[str, Any]:
    """Measure every part that fits, printing a line for each figure."""
    if not torch.cuda.is_available():
        sys.exit("gpu: this machine has no usable CUDA device; run it where there is one.")
    warnings.simplefilter("ignore")
    found = measured(Clock(LIMIT))
    draw(found, Path(__file__).parent / "results")
    return found


def speed(
    *,
    published: Sizes = PUBLISHED,
    decoded: Sizes = DECODED,
    rounds: int = 12,
    compiler: str = "inductor",
    seconds: float = SPEED_LIMIT,
) -> dict[str, Any]:
    """Speed and memory of SAS-P, SAS and pre-LN: steps compiled and not, then decoding.

    The items that tell most come first. Without a CUDA device it runs on the CPU, for a test.
    """
    warnings.simplefilter("ignore")
    clock = Clock(seconds)
    found = {
        "compiled steps": parts.compiled(clock.share(0.6), published, rounds, compiler),
        "steps": parts.steps(clock.share(0.25), published, rounds, ("sas-p", "sas")),
        "decoding": parts.static_decoding(clock.share(1), decoded),
    }
    return {**found, "left out": clock.left_out, "failed": clock.failed}


def measured(
    clock: Clock,
    *,
    published: Sizes = PUBLISHED,
    small: Sizes = SMALL,
    gpt2: Sizes = GPT2,
    decoded: Sizes = DECODED,
    contexts: tuple[int, ...] = CONTEXTS,
    tokens: int = 16_384,
    rounds: int = 12,
    compiler: str = "inductor",
) -> dict[str, Any]:
    """All parts, the most wanted first; on the CPU where there is no CUDA device, for tests.

    Args:
        clock: says what still fits.
        published: model and batch of training steps.
        small: model of the products.
        gpt2: model and batch of the map.
        decoded: model and tokens of decoding.
        contexts: of products and kernels.
        tokens: of each product, dealt out over as many sequences as the context allows.
        rounds: turns of each step.
        compiler: backend of `torch.compile`.

    Returns:
        By part what was measured; `left out` and `failed` with reasons.
    """
    found = {
        "steps": parts.steps(clock.share(0.3), published, rounds),
        "compiled steps": parts.compiled(clock.share(0.3), published, rounds, compiler),
        "products": parts.products(clock.share(0.25), small, contexts, tokens),
        "kernels": parts.kernels(clock.share(0.1), contexts, heads=4, width=64),
        "map": parts.full_map(clock.share(0.4), gpt2),
        "decoding": parts.decoding(clock.share(1), decoded),
    }
    return {**found, "left out": clock.left_out, "failed": clock.failed}
