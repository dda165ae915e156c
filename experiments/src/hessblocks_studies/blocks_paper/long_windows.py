"""Train 12 layers with windows of 512 tokens, ALiBi and GELU (Figure 28)."""

from dataclasses import replace

from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Scale, Summary

JUDGED = ("sas", "sas-p")
VARIANTS = (*shared.BASES, *JUDGED)
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": replace(shared.SMALLEST, context=64),
    "laptop": replace(shared.LAPTOP, depth=12, context=512, batch_size=4, steps=1600),
    "paper": replace(shared.PAPER, depth=12, context=512, batch_size=128, steps=18_000),
}
"""Published: layers, width, windows and the parts of the block. Text, steps and batch are ours."""
SLOTS = ("position=alibi-position", "mlp.activation=gelu")


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """List the blocks at their rates."""
    return [
        shared.Sweep(
            variants=(*VARIANTS, shared.BIGRAMS),
            size=SIZES[scale],
            rates=shared.RATES[scale],
            settings={"slots": SLOTS},
        )
    ]


def summarise(rows: Rows) -> Summary:
    """Plot loss curves and compare final losses."""
    runs = shared.Runs(rows)
    return runs.summary(
        title="12 layers with windows of 512 tokens, ALiBi and GELU",
        panels=[runs.panel(VARIANTS, "loss at equal steps")],
        checks=[
            runs.match(name, base, f"{name} trains like {base} per step on windows of 512")
            for base in shared.BASES
            for name in JUDGED
        ],
    )


STUDY = shared.trained_study(
    "long-windows",
    title="12 layers, windows of 512 tokens, ALiBi and GELU",
    source="Simplified blocks, Figure 28",
    published="On Languini SAS and SAS-P match pre-ln in loss per update.",
    sweeps=sweeps,
    summarise=summarise,
)
