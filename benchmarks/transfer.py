"""Best learning rates over widths: starts that go by the width with rates ∝ 1/width, and neither.

Run `python -m benchmarks transfer`. Each pair of a block and a way has its rate searched in half
decades at every width, with one seed; rates that go by the width are those of the base width, 64.
Every loss is kept in `runs/`, so that a search that was stopped goes on with the next rate.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hessblocks.data import BIGRAMS, BigramTable, load_corpus
from hessblocks.settings import ModelSettings, RunSettings, TrainingSettings
from hessblocks.storage import read_tuning, write_tuning
from hessblocks.training import held_out, next_rate, prepare, tuning_loss

WIDTHS = (64, 128, 256)
WAYS = {"scaled, by width": ("scaled", "width"), "fixed, the same": ("fixed", "same")}
BLOCKS = ("pre-ln-zero", "sas-p")
STEPS, VOCABULARY, MIDDLE, SEED = 1200, 1024, -4, 0
KEPT = Path("runs", f"transfer-{STEPS}")
"""Folder of the losses, by block, way and width."""


def main() -> dict[str, Any]:
    """Search every rate, printing a line for each search."""
    torch.set_num_threads(1)
    KEPT.mkdir(parents=True, exist_ok=True)
    corpus = load_corpus(None, VOCABULARY)
    found: dict[str, Any] = {"steps": STEPS, "depth": 2, "batch": 16, "context": 32, "base": 64}
    windows = held_out(corpus, settings(BLOCKS[0], *WAYS["scaled, by width"], WIDTHS[0]))
    tokens = torch.stack([windows[place]["input_ids"] for place in range(len(windows))])
    table = BigramTable(corpus.splits["train"], corpus.vocab_size)
    found[BIGRAMS] = table.loss(tokens)
    print(f"{BIGRAMS}: {found[BIGRAMS]:.4f}", flush=True)
    losses = read_tuning(KEPT)
    for block, width, (way, chosen) in itertools.product(BLOCKS, WIDTHS, WAYS.items()):
        name = f"{block}, {way}, width {width}"
        tried = losses.setdefault(name, {})
        while (rate := next_rate(tried, MIDDLE)) is not None:
            run = at_rate(settings(block, *chosen, width), rate)
            tried[rate] = tuning_loss(run, prepare(run, corpus))
            write_tuning(KEPT, SEED, losses)
        best = min(tried, key=tried.__getitem__)
        told = {f"{rate:g}": round(loss, 4) for rate, loss in sorted(tried.items())}
        print(f"{name}: best {best:g} of {told}", flush=True)
        found.setdefault(block, {}).setdefault(way, {})[str(width)] = {"best": best, "losses": told}
    return found


def settings(block: str, start: str, rates: str, width: int) -> RunSettings:
    """A run of a block at a width."""
    return RunSettings(
        preset=block,
        seed=SEED,
        model=ModelSettings(depth=2, width=width, heads=4, context=32, start=start),
        training=TrainingSettings(
            steps=STEPS, batch_size=16, rates=rates, evaluate_every=STEPS, evaluation_sequences=256
        ),
    )


def at_rate(run: RunSettings, rate: float) -> RunSettings:
    """The same at another rate."""
    return replace(run, training=replace(run.training, learning_rate=rate))
