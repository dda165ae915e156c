"""Train on three times the tokens (Figure 8)."""

from dataclasses import replace

from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Scale, Summary

JUDGED = ("sas", "sas-p")
VARIANTS = (*shared.BASES, *JUDGED)
TIMES = 3
"""Number of tokens relative to the other studies."""
PUBLISHED_STEPS = 120_000


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """Train all blocks at the size of the other studies, for more steps.

    Returns:
        One sweep at the best rate of `trial` for all blocks in runs of 2,400 steps; no lower rate
        was better in 8,000 steps.
    """
    steps = PUBLISHED_STEPS if scale == "paper" else TIMES * shared.SIZES[scale].steps
    size = replace(shared.SIZES[scale], steps=steps)
    rates = shared.Grid(rates=shared.RATES[scale].rates[:1])
    return [shared.Sweep(variants=(*VARIANTS, *shared.REFERENCES), size=size, rates=rates)]


def summarise(rows: Rows) -> Summary:
    """Plot loss curves and compare final losses."""
    runs, title = shared.Runs(rows), "loss at equal steps"
    plain, base = shared.BASES
    return runs.summary(
        title="Three times the tokens",
        panels=[
            runs.panel(VARIANTS, title),
            shared.gap_panel(runs, (plain, *JUDGED), base, title),
        ],
        checks=[
            runs.close(name, base, f"{name} keeps up with {base} in a longer training")
            for base in shared.BASES
            for name in JUDGED
        ],
    )


STUDY = shared.trained_study(
    "longer",
    title="three times the tokens",
    source="Simplified blocks, Figure 8",
    published="With three times the tokens SAS and SAS-P keep the training speed of pre-ln.",
    sweeps=sweeps,
    summarise=summarise,
)
