"""List the points of `edge-of-stability`: blocks, kinds of run, the ladder of rates, sizes."""

from dataclasses import dataclass, replace
from functools import partial

from hessblocks_studies import shared
from hessblocks_studies.engine import Scale

BASE, SIMPLE = "pre-ln, zero queries", "sas-p"
BLOCKS = (BASE, SIMPLE)
POSITION = ("position=rotary",)
WARM, COLD = "warm-up", "no warm-up"
KINDS = {WARM: 0.1, COLD: 0.0}
"""Kind of run → share of the steps in which the rate grows."""


def label_of(block: str, kind: str) -> str:
    """Name of a block with a warm-up or without."""
    return f"{block}, {kind}"


LABELS = {label_of(block, kind): (block, kind) for block in BLOCKS for kind in KINDS}
RATES: dict[Scale, tuple[float, ...]] = {
    "smoke": (3e-3, 1e-2),
    "laptop": (1e-2, 3e-3, 3e-2, 1e-1, 5.6e-3, 1.8e-2, 5.6e-2),
    "paper": (1e-3, 3e-3, 3e-4, 1e-2, 5.6e-4, 1.8e-3, 5.6e-3),
}
"""The ladder, by quarter decades; made longer as results come in."""
TUNED: dict[Scale, tuple[float, ...]] = {
    "smoke": (1e-2, 3e-3),
    "laptop": (1e-2, 3e-3, 3e-2, 1e-1),
    "paper": (1e-3, 3e-4, 3e-3, 1e-2),
}
"""The rates of the tuning, by half decades, the likeliest first."""
BEST: dict[str, float] = {BASE: 1e-2, SIMPLE: 3e-2, shared.GPT2: 1e-2}
"""Rates at laptop scale at which every role is followed: the outcome of the tuning; that of GPT-2
is `trial`'s."""
SAFE: dict[Scale, float] = {"smoke": 1e-3, "laptop": 1e-3, "paper": 1e-4}
"""The rate at which forecasts are read, below the ladder, so that it stays what it is where that is
made longer."""
FIRST_LOOKS = (1, 2, 5)
"""Steps at which the sharpness is read beside those of the validation losses: without warm-up it
falls at once."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": replace(shared.SMALLEST, steps=10, evaluations=5),
    "laptop": replace(shared.LAPTOP, depth=4, steps=1000, evaluations=40, evaluation_sequences=64),
    "paper": replace(shared.PAPER, evaluations=100),
}
"""The sharpness is followed whenever a validation loss is taken."""
_BATCHES: dict[Scale, tuple[int, int]] = {"smoke": (2, 8), "laptop": (16, 64), "paper": (16, 128)}
"""Windows of the training text, and tokens of each, on which it is measured; every seed has its
own."""
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "paper": 3}


@dataclass(frozen=True, kw_only=True)
class EdgeSettings(shared.TunedSettings):
    """A point of this study: one run, or one reference."""

    sequences: int | None = None
    """Windows on which sharpness is measured; None where it is not followed."""
    tokens: int | None = None
    """Tokens of each sequence."""
    roles: bool | None = None
    """Whether the sharpness of every role is followed too; None where it is not."""


def points(scale: Scale, count: int | None) -> list[EdgeSettings]:
    """List the tuning of each block with warm-up, then safe rate and ladder of both kinds.

    Args:
        scale: scale of the study.
        count: seeds of the runs; None for the scale's own.

    Returns:
        The points' settings.
    """
    ladders = dict.fromkeys(LABELS, (SAFE[scale], *RATES[scale]))
    ladders[shared.GPT2] = (_best(scale, shared.GPT2),)
    runs: list[tuple[str, float | None]] = [(shared.BIGRAMS, None)]
    runs += [(label, rate) for label, rates in ladders.items() for rate in rates]
    tuned = {label_of(block, WARM): TUNED[scale] for block in BLOCKS}
    return [
        *shared.tuning_points(partial(_point, scale, shared.TUNING), tuned),
        *(
            _point(scale, shared.COUNTED, label, rate, seed)
            for seed in shared.run_seeds(count or _SEEDS[scale])
            for label, rate in runs
        ),
    ]


def _best(scale: Scale, label: str) -> float:
    return BEST[label] if scale == "laptop" else TUNED[scale][0]


def _point(scale: Scale, phase: str, label: str, rate: float | None, seed: int) -> EdgeSettings:
    size = SIZES[scale]
    block, kind = LABELS.get(label, (None, WARM))
    counts = bool(block) and phase == shared.COUNTED
    at_best = counts and rate == _best(scale, block or label)
    sequences, tokens = (
        _BATCHES[scale] if at_best or (counts and rate == SAFE[scale]) else (None, None)
    )
    return EdgeSettings(
        study="edge-of-stability",
        variant=block or label,
        seed=seed,
        size=replace(size, learning_rate=rate or size.learning_rate),
        slots=POSITION if block else (),
        embedding_std=shared.best_start(block, size.width) if block else None,
        warmup=KINDS[kind] if rate else None,
        phase=phase,
        label=label,
        tuned=True if rate else None,
        sequences=sequences,
        tokens=tokens,
        roles=at_best or None,
    )
