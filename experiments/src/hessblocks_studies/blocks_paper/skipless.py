"""Train without the attention skip (Figure 2)."""

from hessblocks_studies.engine import Rows, Summary
from hessblocks_studies.shared import RATES, REFERENCES, SIZES, Runs, Sweep, trained_study

VARIANTS = ("pre-ln", "v-skipinit", "skipless")


def summarise(rows: Rows) -> Summary:
    """Plot loss curves and compare final losses."""
    runs = Runs(rows)
    return runs.summary(
        title="Blocks without an attention skip against pre-ln",
        panels=[runs.panel(VARIANTS, "loss at equal steps")],
        checks=[
            runs.slower(slow, "pre-ln", f"{slow} trains slower than pre-ln")
            for slow in VARIANTS[1:]
        ],
    )


STUDY = trained_study(
    "skipless",
    title="blocks without attention skip against pre-ln",
    source="Simplified blocks, Figure 2",
    published="Skipless blocks lose much training speed per step, even with shaped attention.",
    sweeps=lambda scale: [
        Sweep(variants=(*VARIANTS, *REFERENCES), size=SIZES[scale], rates=RATES[scale])
    ],
    summarise=summarise,
)
