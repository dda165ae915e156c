"""The appendix of the simplified-blocks paper: decay, MLP gain, initial values, what else can go."""

from __future__ import annotations

from hessblocks.storage import Row
from hessblocks.studies.engine import Check, Rows, Scale, Summary
from hessblocks.studies.shared import (
    MLP_GAINS,
    SEEDS,
    SIZES,
    Losses,
    TrainedSettings,
    close_check,
    every_run,
    final_losses,
    finite,
    loss_summary,
    places_panel,
    slower_check,
    train_point,
    trained_study,
)

INITIALS = ("normal values", "orthogonal values", "tied values", "identity values")
VARIANTS = (
    "pre-ln",
    "pre-ln, identity values",
    "sas",
    "sas, no first values",
    "sas, no MLP skip",
    *(f"sas, MLP gain x{factor:g}" for factor in MLP_GAINS),
    *INITIALS,
)
COSINE = ("pre-ln", "sas")
"""Variants that are trained with a cosine decay too."""


def settings(scale: Scale, seeds: int | None) -> list[TrainedSettings]:
    """Points of a scale."""
    return [
        point
        for decay, variants in (("linear", VARIANTS), ("cosine", COSINE))
        for point in every_run(
            TrainedSettings,
            "ablations",
            variants,
            SIZES[scale],
            seeds or SEEDS[scale],
            decay=decay,
        )
    ]


def measure(settings: TrainedSettings) -> list[Row]:
    """Train one model; a cosine decay is part of the variant's name."""
    name = settings.variant + (", cosine" if settings.decay == "cosine" else "")
    return [{**row, "variant": name} for row in train_point(settings)]


def summarise(rows: Rows) -> Summary:
    """Final losses, and the appendix's facts."""
    losses = final_losses(rows)
    label = "final validation loss (nats per token)"
    shown = finite(losses)
    return loss_summary(
        rows,
        title="What the details are worth",
        caption=(
            "The rows of values are skipless blocks with freely trainable values and projections from "
            "that initial value."
        ),
        panels=[places_panel({"final loss": shown}, label, bars=False)] if shown else [],
        checks=_checks(losses),
    )


def _checks(losses: Losses) -> list[Check]:
    no_worse = "linear decay is no worse than cosine"
    slower = (
        ("pre-ln, identity values", "pre-ln", "identity values beside an attention skip hurt"),
        (
            "sas, no MLP skip",
            "sas",
            "removing the MLP skip of the sequential block slows training",
        ),
        ("sas, no first values", "sas", "the first layer's values are worth keeping"),
    )
    return [
        *(close_check(losses, n, f"{n}, cosine", 0.0, f"{no_worse} ({n})") for n in COSINE),
        *(slower_check(losses, slow, fast, fact) for slow, fast, fact in slower),
    ]


STUDY = trained_study(
    "ablations",
    title="decay, MLP gain, initial values, first values, MLP skip",
    source="Simplified blocks, appendix",
    published=(
        "Linear decay beats cosine; identity values next to an attention skip hurt; the sequential block "
        "without MLP skip trains far slower."
    ),
    settings=settings,
    measure=measure,
    summarise=summarise,
)
