"""Training steps of SAS-P and SAS over those of pre-LN on one thread, by width.

Run `python -m benchmarks steps`. Forward, backward and AdamW on 4 x 128 tokens, 4 layers, heads of
32 to 64, float32, in processor time. Sides take turns; the figure is the median of the turns'
ratios, with its standard error from their deviation.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks._timing import processed
from benchmarks.blocks import Sizes, built, step_flops, training_step

WIDTHS = (64, 128, 256, 512)
SIZES = Sizes(depth=4, width=64, heads=2, vocab_size=256, context=128, batch=4)
ROUNDS = 15
MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, of Gaussian turns."""


def main() -> dict[str, Any]:
    """Measure every width, printing a line for each preset."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"sizes": asdict(SIZES), "rounds": ROUNDS}
    for width in WIDTHS:
        found[f"width {width}"] = at_width(width, rounds=ROUNDS)
    return found


def at_width(width: int, *, rounds: int, sizes: Sizes = SIZES) -> dict[str, Any]:
    """Ratios of one width; above 1 a preset's step is faster than pre-LN's."""
    torch.manual_seed(0)
    sizes = replace(sizes, width=width, heads=max(2, width // 64))
    tokens = torch.randint(sizes.vocab_size, (sizes.batch, sizes.context))
    models = {name: built(name, sizes).train() for name in ("pre-ln", "sas", "sas-p")}
    flops = {name: step_flops(model, tokens) for name, model in models.items()}
    steps = {name: training_step(model, tokens) for name, model in models.items()}
    turns = [{name: processed(step) for name, step in steps.items()} for _ in range(rounds + 1)][1:]
    found: dict[str, Any] = {"pre-ln seconds": statistics.median(turn["pre-ln"] for turn in turns)}
    for name in ("sas", "sas-p"):
        ratios = [turn["pre-ln"] / turn[name] for turn in turns]
        deviation = statistics.stdev(ratios) if rounds > 1 else math.nan
        found[name] = {
            "speed over pre-ln": statistics.median(ratios),
            "error": MEDIAN_ERROR * deviation / math.sqrt(rounds),
            "limit by products": flops["pre-ln"] / flops[name],
        }
        print(
            f"width {width}, {name}: {found[name]['speed over pre-ln']:.3f} +- "
            f"{found[name]['error']:.3f} times pre-ln (products alone "
            f"{found[name]['limit by products']:.3f})",
            flush=True,
        )
    return found


if __name__ == "__main__":
    main()
