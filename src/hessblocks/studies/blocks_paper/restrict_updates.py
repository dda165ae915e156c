"""Figure 3 of the simplified-blocks paper: values and projections kept near their initial value."""

from __future__ import annotations

from collections.abc import Sequence

from hessblocks.figures import Figure, Panel, Series, mean_and_error
from hessblocks.storage import Row
from hessblocks.studies.engine import Scale, Settings, Study, Summary
from hessblocks.studies.shared import (
    BETAS,
    RESTRICTED_INITS,
    SEEDS,
    SIZES,
    TRAINED_COLUMNS,
    TRAINED_REVISION,
    Losses,
    close_check,
    final_losses,
    loss_table,
    measure_trained,
    restricted,
    slower_check,
    trained_settings,
)

IDENTITY = restricted("identity", 0)
VARIANTS = (
    "pre-ln",
    IDENTITY,
    *(restricted(init, beta) for init in RESTRICTED_INITS for beta in BETAS),
)
CLOSE = 0.03
"""Nats per token that still count as "about the loss of pre-ln"."""


def settings(scale: Scale, seeds: int | None) -> list[Settings]:
    """Points of a scale."""
    return trained_settings("restrict-updates", VARIANTS, SIZES[scale], seeds or SEEDS[scale])


def summarise(rows: Sequence[Row]) -> Summary:
    """Final loss against the gain β of the trainable part."""
    losses = final_losses(rows)
    return Summary(
        figure=Figure(
            title="Final loss against the gain of trainable values and projections",
            caption=(
                "W = W_init + β ΔW for values and projections of the skipless block, β = 0: W_init alone. "
                "Python source; mean over seeds, bars are its standard errors."
            ),
            panels=(_panel(losses),) if losses else (),
        ),
        checks=(
            close_check(losses, IDENTITY, "pre-ln", CLOSE, "identity values about match pre-ln"),
            slower_check(
                losses,
                restricted("identity", 1),
                restricted("identity", BETAS[0]),
                "freer updates of values and projections train slower",
            ),
            *(
                close_check(
                    losses,
                    restricted("identity", beta),
                    restricted("orthogonal", beta),
                    0.0,
                    f"identity is at least as good as orthogonal at β = {beta:g}",
                )
                for beta in BETAS
            ),
        ),
        tables={"losses": loss_table(losses, rows)},
    )


def _panel(losses: Losses) -> Panel:
    curves: dict[str, dict[float, Sequence[float]]] = {
        init: {beta: list(losses.get(restricted(init, beta), {}).values()) for beta in (0, *BETAS)}
        for init in RESTRICTED_INITS
    }
    plain = list(losses.get("pre-ln", {}).values())
    curves["pre-ln"] = {0: plain, BETAS[-1]: plain}
    return Panel(
        title="",
        x_label="gain β of the trainable part",
        y_label="final validation loss (nats per token)",
        series=tuple(
            series for name, curve in curves.items() if (series := _series(name, curve)) is not None
        ),
    )


def _series(name: str, curve: dict[float, Sequence[float]]) -> Series | None:
    kept = {
        beta: mean_and_error(runs)
        for beta, runs in curve.items()
        if runs and max(runs) < float("inf")
    }
    if not kept:
        return None
    return Series(
        name=name,
        x=tuple(kept),
        y=tuple(mean for mean, _ in kept.values()),
        error=tuple(error for _, error in kept.values()),
    )


STUDY = Study(
    name="restrict-updates",
    title="final loss against the gain of trainable values and projections",
    source="Simplified blocks, Figure 3",
    published=(
        "Smaller gains of the trainable part recover the lost speed; identity beats orthogonal at every "
        "gain, and identity alone about matches pre-ln."
    ),
    settings=settings,
    measure=measure_trained,
    summarise=summarise,
    columns=TRAINED_COLUMNS,
    revision=TRAINED_REVISION,
    gpus=1,
)
