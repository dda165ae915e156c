"""Best learning rates over widths: starts that go by the width with rates ∝ 1/width, and neither.

Run `python -m benchmarks transfer`. Each pair of a block and a way has its rate searched in half
decades at every width, with one seed; rates that go by the width are those of the base width, 64.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from hessblocks.data import BIGRAMS, BigramTable, load_corpus
from hessblocks.settings import ModelSettings, RunSettings, TrainingSettings
from hessblocks.training import held_out, next_rate, tuning_loss

WIDTHS = (64, 128, 256)
WAYS = {"scaled, by width": ("scaled", "width"), "fixed, the same": ("fixed", "same")}
BLOCKS = ("pre-ln-zero", "sas-p")
STEPS, VOCABULARY, MIDDLE = 300, 1024, -4


def main() -> dict[str, Any]:
    """Search every rate, printing a line for each."""
    torch.set_num_threads(1)
    corpus = load_corpus(None, VOCABULARY)
    found: dict[str, Any] = {"steps": STEPS, "depth": 2, "batch": 16, "context": 32, "base": 64}
    for block in BLOCKS:
        for way, (start, rates) in WAYS.items():
            for width in WIDTHS:
                run = settings(block, start, rates, width)
                tried: dict[float, float] = {}
                began = time.process_time()
                while (rate := next_rate(tried, MIDDLE)) is not None:
                    tried[rate] = tuning_loss(at_rate(run, rate), corpus)
                best = min(tried, key=tried.__getitem__)
                told = {f"{rate:g}": round(loss, 4) for rate, loss in sorted(tried.items())}
                found.setdefault(block, {}).setdefault(way, {})[str(width)] = {
                    "best": best,
                    "losses": told,
                }
                seconds = time.process_time() - began
                print(
                    f"{block}, {way}, width {width}: best {best:g} of {told}, {seconds:.0f} s",
                    flush=True,
                )
    windows = held_out(corpus, run)
    tokens = torch.stack([windows[place]["input_ids"] for place in range(len(windows))])
    found[BIGRAMS] = BigramTable(corpus.splits["train"], corpus.vocab_size).loss(tokens)
    return found


def settings(block: str, start: str, rates: str, width: int) -> RunSettings:
    """A run of a block at a width."""
    return RunSettings(
        preset=block,
        model=ModelSettings(depth=2, width=width, heads=4, context=32, start=start),
        training=TrainingSettings(
            steps=STEPS, batch_size=16, rates=rates, evaluate_every=STEPS, evaluation_sequences=256
        ),
    )


def at_rate(run: RunSettings, rate: float) -> RunSettings:
    """The same at another rate."""
    return replace(run, training=replace(run.training, learning_rate=rate))
