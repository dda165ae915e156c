"""Figure 8 of the simplified-blocks paper: three times the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hessblocks.figures import Figure
from hessblocks.storage import Row
from hessblocks.studies.engine import Scale, Settings, Study, Summary
from hessblocks.studies.shared import (
    SEEDS,
    SIZES,
    TRAINED_COLUMNS,
    TRAINED_REVISION,
    close_check,
    final_losses,
    loss_panel,
    loss_table,
    measure_trained,
    trained_settings,
)

VARIANTS = ("pre-ln", "sas", "sas-p")
TIMES = 3
"""Tokens, as a multiple of the other studies'."""
PUBLISHED_STEPS = 120_000
CLOSE = 0.03
"""Nats per token that still count as "no slower"."""


def settings(scale: Scale, seeds: int | None) -> list[Settings]:
    """Points of a scale."""
    steps = PUBLISHED_STEPS if scale == "paper" else TIMES * SIZES[scale].steps
    size = replace(SIZES[scale], steps=steps)
    return trained_settings("longer", VARIANTS, size, seeds or SEEDS[scale])


def summarise(rows: Sequence[Row]) -> Summary:
    """Loss curves and final losses."""
    losses = final_losses(rows)
    return Summary(
        figure=Figure(
            title="Three times the tokens",
            caption="Python source; mean over seeds, bars are its standard errors.",
            panels=(loss_panel(rows, VARIANTS, "loss at equal steps"),),
        ),
        checks=tuple(
            close_check(
                losses, name, "pre-ln", CLOSE, f"{name} keeps up with pre-ln in a longer training"
            )
            for name in VARIANTS[1:]
        ),
        tables={"losses": loss_table(losses, rows)},
    )


STUDY = Study(
    name="longer",
    title="three times the tokens",
    source="Simplified blocks, Figure 8",
    published="With three times the tokens SAS and SAS-P keep the training speed of pre-ln.",
    settings=settings,
    measure=measure_trained,
    summarise=summarise,
    columns=TRAINED_COLUMNS,
    revision=TRAINED_REVISION,
    gpus=1,
)
