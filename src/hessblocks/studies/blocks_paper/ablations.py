"""The appendix of the simplified-blocks paper: decay, MLP gain, initial values, what else can go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hessblocks.figures import Figure, mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks.studies.engine import Check, Scale, Settings, Study, Summary, word
from hessblocks.studies.shared import (
    MLP_GAINS,
    SEEDS,
    SIZES,
    TRAINED_COLUMNS,
    TRAINED_REVISION,
    Losses,
    close_check,
    final_losses,
    loss_table,
    places_panel,
    slower_check,
    train_point,
    trained_settings,
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


def settings(scale: Scale, seeds: int | None) -> list[Settings]:
    """Points of a scale."""
    size, count = SIZES[scale], seeds or SEEDS[scale]
    linear = trained_settings("ablations", VARIANTS, size, count, decay="linear")
    return linear + trained_settings("ablations", COSINE, size, count, decay="cosine")


def measure(settings: Mapping[str, Scalar]) -> list[Row]:
    """Train one model; a cosine decay is part of the variant's name."""
    cosine = settings["decay"] == "cosine"
    name = f"{word(settings, 'variant')}, cosine" if cosine else settings["variant"]
    return [{**row, "variant": name} for row in train_point(settings)]


def summarise(rows: Sequence[Row]) -> Summary:
    """Final losses, and the appendix's facts."""
    losses = final_losses(rows)
    finite = {
        name: mean_and_error(list(runs.values()))
        for name, runs in losses.items()
        if max(runs.values()) < float("inf")
    }
    label = "final validation loss (nats per token)"
    panel = places_panel({"final loss": finite}, label, bars=False)
    return Summary(
        figure=Figure(
            title="What the details are worth",
            caption=(
                "The rows of values are skipless blocks with freely trainable values and projections from "
                "that initial value. Python source; mean over seeds, bars are its standard errors."
            ),
            panels=(panel,) if finite else (),
        ),
        checks=tuple(_checks(losses)),
        tables={"losses": loss_table(losses, rows)},
    )


def _checks(losses: Losses) -> list[Check]:
    return [
        *(
            close_check(
                losses,
                name,
                f"{name}, cosine",
                0.0,
                f"linear decay is no worse than cosine ({name})",
            )
            for name in COSINE
        ),
        slower_check(
            losses,
            "pre-ln, identity values",
            "pre-ln",
            "identity values beside an attention skip hurt",
        ),
        slower_check(
            losses,
            "sas, no MLP skip",
            "sas",
            "removing the MLP skip of the sequential block slows training",
        ),
        slower_check(
            losses,
            "sas, no first values",
            "sas",
            "the first layer's values are worth keeping",
        ),
    ]


STUDY = Study(
    name="ablations",
    title="decay, MLP gain, initial values, first values, MLP skip",
    source="Simplified blocks, appendix",
    published=(
        "Linear decay beats cosine; identity values next to an attention skip hurt; the sequential block "
        "without MLP skip trains far slower."
    ),
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=TRAINED_COLUMNS,
    revision=TRAINED_REVISION,
    gpus=1,
)
