"""The plan of the study `edge-of-stability`: blocks, kinds of run, the ladder of rates, sizes and points. Its rule stands with the study."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from hessblocks.studies import shared
from hessblocks.studies.engine import Scale

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
    "laptop": (3e-3, 1e-2, 1e-3, 3e-2, 1e-1),
    "paper": (1e-3, 3e-3, 3e-4, 1e-2, 3e-2),
}
"""The ladder, the likeliest rates first; made longer as results come in."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": replace(
        shared.SMOKE, depth=1, steps=10, batch_size=4, evaluations=5, evaluation_sequences=8
    ),
    "laptop": replace(shared.LAPTOP, steps=800, evaluations=80, evaluation_sequences=64),
    "paper": replace(shared.PAPER, evaluations=100),
}
"""The sharpness is followed whenever a validation loss is taken."""
_BATCHES: dict[Scale, tuple[int, int]] = {"smoke": (2, 8), "laptop": (8, 32), "paper": (8, 128)}
"""Windows of the training text, and tokens of each, on which it is measured."""
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "paper": 3}


@dataclass(frozen=True, kw_only=True)
class EdgeSettings(shared.TunedSettings):
    """A point of this study: one run, or one reference."""

    sequences: int | None = None
    """Windows on which sharpness is measured; None where it is not followed."""
    tokens: int | None = None
    """Of each."""


def points(scale: Scale, count: int | None) -> list[EdgeSettings]:
    """The ladder of each block with warm-up at the tuning seed, then all ladders seed by seed.

    Args:
        scale: of the study.
        count: seeds of the runs; None for the scale's own.

    Returns:
        The points' settings.
    """
    warm = (*(label_of(block, WARM) for block in BLOCKS), shared.GPT2)
    ladders = dict.fromkeys((*LABELS, shared.GPT2), RATES[scale])
    runs: list[tuple[str, float | None]] = [(shared.BIGRAMS, None)]
    runs += [(label, rate) for label, rates in ladders.items() for rate in rates]
    return [
        *shared.tuning_points(
            partial(_point, scale, shared.TUNING), {label: ladders[label] for label in warm}
        ),
        *(
            _point(scale, shared.COUNTED, label, rate, seed)
            for seed in shared.run_seeds(count or _SEEDS[scale])
            for label, rate in runs
        ),
    ]


def _point(scale: Scale, phase: str, label: str, rate: float | None, seed: int) -> EdgeSettings:
    size = SIZES[scale]
    block, kind = LABELS.get(label, (None, WARM))
    followed = bool(block) and phase == shared.COUNTED
    sequences, tokens = _BATCHES[scale] if followed else (None, None)
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
    )
