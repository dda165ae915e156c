"""List the points of `edge-of-stability`: blocks, kinds of runs, ladder of rates, sizes."""

from dataclasses import dataclass, replace
from functools import partial

from hessblocks_studies import shared
from hessblocks_studies.engine import Scale

BASE, SIMPLE = "pre-ln, zero queries", "sas-p"
BLOCKS = (BASE, SIMPLE)
POSITION = ("position=rotary",)
WARM, COLD = "warm-up", "no warm-up"
KINDS = {WARM: 0.1, COLD: 0.0}
"""Kind of run → share of the steps with an increasing rate."""


def label_of(block: str, kind: str) -> str:
    """Name a block with a kind of run."""
    return f"{block}, {kind}"


LABELS = {label_of(block, kind): (block, kind) for block in BLOCKS for kind in KINDS}
RATES: dict[Scale, tuple[float, ...]] = {
    "smoke": (3e-3, 1e-2),
    "laptop": (1e-2, 3e-3, 3e-2, 1e-1, 5.6e-3, 1.8e-2, 5.6e-2),
    "paper": (1e-3, 3e-3, 3e-4, 1e-2, 5.6e-4, 1.8e-3, 5.6e-3),
}
"""Ladder of rates in quarter decades, by scale; extended as results came in."""
TUNED: dict[Scale, tuple[float, ...]] = {
    "smoke": (1e-2, 3e-3),
    "laptop": (1e-2, 3e-3, 3e-2, 1e-1),
    "paper": (1e-3, 3e-4, 3e-3, 1e-2),
}
"""Rates of the tuning in half decades, by scale, the likeliest first."""
BEST: dict[str, float] = {BASE: 1e-2, SIMPLE: 3e-2, shared.GPT2: 1e-2}
"""Rates at laptop scale at which the sharpness of every role is measured: results of the tuning;
for GPT-2 the rate of `trial`."""
SAFE: dict[Scale, float] = {"smoke": 1e-3, "laptop": 1e-3, "paper": 1e-4}
"""Rate of the runs that forecasts use. It is below the ladder, so that it stays the lowest when the
ladder is extended."""
FIRST_LOOKS = (1, 2, 5)
"""Steps with a measurement of the sharpness besides the evaluations: without warm-up it falls
immediately."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": replace(shared.SMALLEST, steps=10, evaluations=5),
    "laptop": replace(shared.LAPTOP, depth=4, steps=1000, evaluations=40, evaluation_sequences=64),
    "paper": replace(shared.PAPER, evaluations=100),
}
"""Sizes; the sharpness is measured at every evaluation."""
_BATCHES: dict[Scale, tuple[int, int]] = {"smoke": (2, 8), "laptop": (16, 64), "paper": (16, 128)}
"""Number of training windows, and of tokens per window, for the sharpness; they differ between
seeds."""
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "paper": 3}


@dataclass(frozen=True, kw_only=True)
class EdgeSettings(shared.TunedSettings):
    """Settings of a point: one run, or one reference."""

    sequences: int | None = None
    """Number of windows for the sharpness; None if it is not measured."""
    tokens: int | None = None
    """Tokens per window."""
    roles: bool | None = None
    """Whether the sharpness of every role is measured, too; None if not."""


def points(scale: Scale, count: int | None) -> list[EdgeSettings]:
    """List the tuning of each block with warm-up, then `SAFE` and ladder for both kinds of runs.

    Args:
        scale: scale of the study.
        count: seeds of the runs; None for the scale's default.

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
