"""Figure 2 of the simplified-blocks paper: what removing the attention skip costs."""

from __future__ import annotations

from collections.abc import Sequence

from hessblocks.figures import Figure
from hessblocks.storage import Row
from hessblocks.studies.engine import Scale, Settings, Study, Summary
from hessblocks.studies.shared import (
    SEEDS,
    SIZES,
    TRAINED_COLUMNS,
    TRAINED_REVISION,
    final_losses,
    loss_panel,
    loss_table,
    measure_trained,
    slower_check,
    trained_settings,
)

VARIANTS = ("pre-ln", "v-skipinit", "skipless")


def settings(scale: Scale, seeds: int | None) -> list[Settings]:
    """Points of a scale."""
    return trained_settings("skipless", VARIANTS, SIZES[scale], seeds or SEEDS[scale])


def summarise(rows: Sequence[Row]) -> Summary:
    """Loss curves and final losses."""
    losses = final_losses(rows)
    return Summary(
        figure=Figure(
            title="Blocks without an attention skip against pre-ln",
            caption="Python source; mean over seeds, bars are its standard errors.",
            panels=(loss_panel(rows, VARIANTS, "loss at equal steps"),),
        ),
        checks=tuple(
            slower_check(losses, slow, "pre-ln", f"{slow} trains slower than pre-ln")
            for slow in VARIANTS[1:]
        ),
        tables={"losses": loss_table(losses, rows)},
    )


STUDY = Study(
    name="skipless",
    title="blocks without attention skip against pre-ln",
    source="Simplified blocks, Figure 2",
    published="Skipless blocks lose much training speed per step, even with shaped attention.",
    settings=settings,
    measure=measure_trained,
    summarise=summarise,
    columns=TRAINED_COLUMNS,
    revision=TRAINED_REVISION,
    gpus=1,
)
