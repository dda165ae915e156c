"""Train on three times the tokens (Figure 8)."""

from __future__ import annotations

from dataclasses import replace

from hessblocks_studies.engine import Rows, Scale, Summary
from hessblocks_studies.shared import (
    BASES,
    RATES,
    REFERENCES,
    SIZES,
    Grid,
    Runs,
    Sweep,
    gap_panel,
    trained_study,
)

JUDGED = ("sas", "sas-p")
VARIANTS = (*BASES, *JUDGED)
TIMES = 3
"""Tokens, as a multiple of the other studies'."""
PUBLISHED_STEPS = 120_000


def sweeps(scale: Scale) -> list[Sweep]:
    """All blocks at the size of the other studies, with more steps, at the rate that `trial` found best for all of them in runs of 2,400 steps and no lower one better in 8,000."""
    steps = PUBLISHED_STEPS if scale == "paper" else TIMES * SIZES[scale].steps
    size = replace(SIZES[scale], steps=steps)
    rates = Grid(rates=RATES[scale].rates[:1])
    return [Sweep(variants=(*VARIANTS, *REFERENCES), size=size, rates=rates)]


def summarise(rows: Rows) -> Summary:
    """Loss curves and final losses."""
    runs, title = Runs(rows), "loss at equal steps"
    plain, base = BASES
    return runs.summary(
        title="Three times the tokens",
        panels=[
            runs.panel(VARIANTS, title),
            gap_panel(runs, (plain, *JUDGED), base, title),
        ],
        checks=[
            runs.close(name, base, f"{name} keeps up with {base} in a longer training")
            for base in BASES
            for name in JUDGED
        ],
    )


STUDY = trained_study(
    "longer",
    title="three times the tokens",
    source="Simplified blocks, Figure 8",
    published="With three times the tokens SAS and SAS-P keep the training speed of pre-ln.",
    sweeps=sweeps,
    summarise=summarise,
)
