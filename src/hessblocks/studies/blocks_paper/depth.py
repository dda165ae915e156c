"""Figure 6 of the simplified-blocks paper: blocks four times as deep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hessblocks.figures import Figure
from hessblocks.storage import Row, Scalar
from hessblocks.studies.engine import Scale, Settings, Study, Summary, word
from hessblocks.studies.shared import (
    SEEDS,
    SIZES,
    TRAINED_COLUMNS,
    TRAINED_REVISION,
    close_check,
    final_losses,
    loss_panel,
    loss_table,
    train_point,
    trained_settings,
)
from hessblocks.training import RunSize

BLOCKS = ("pre-ln", "sas", "sas-p")
DEPTHS: dict[Scale, tuple[int, int]] = {"smoke": (2, 8), "laptop": (3, 12), "paper": (18, 72)}
CLOSE = 0.05
"""Nats per token that still count as "no slower"."""


def settings(scale: Scale, seeds: int | None) -> list[Settings]:
    """Points of a scale: MLPs of two widths, at both depths."""
    points: list[Settings] = []
    for depth in DEPTHS[scale]:
        size = _shallow(SIZES[scale], depth)
        points += trained_settings("depth", BLOCKS, size, seeds or SEEDS[scale])
    return points


def _shallow(size: RunSize, depth: int) -> RunSize:
    return replace(size, depth=depth, mlp_width=2 * size.width)


def measure(settings: Mapping[str, Scalar]) -> list[Row]:
    """Train one model; its depth is part of the variant's name."""
    name = f"{word(settings, 'variant')}, {settings['depth']} layers"
    return [{**row, "variant": name} for row in train_point(settings)]


def summarise(rows: Sequence[Row]) -> Summary:
    """Loss curves at each depth, and final losses against pre-ln of the same depth."""
    losses = final_losses(rows)
    depths = sorted({int(name.split(", ")[1].split()[0]) for name in losses})
    return Summary(
        figure=Figure(
            title="Simplified blocks at two depths, one four times the other",
            caption="MLP of two widths. Python source; mean over seeds, bars are its standard errors.",
            panels=tuple(
                loss_panel(_at(rows, depth), BLOCKS, f"{depth} layers") for depth in depths
            ),
        ),
        checks=tuple(
            close_check(
                losses,
                f"{name}, {depth} layers",
                f"pre-ln, {depth} layers",
                CLOSE,
                f"{name} trains no slower per step than pre-ln at {depth} layers",
            )
            for depth in depths
            for name in BLOCKS[1:]
        ),
        tables={"losses": loss_table(losses, rows)},
    )


def _at(rows: Sequence[Row], depth: int) -> list[Row]:
    """The rows of one depth, named by their block alone: a block has one colour at every depth."""
    end = f", {depth} layers"
    return [
        {**row, "variant": word(row, "variant").removesuffix(end)}
        for row in rows
        if word(row, "variant").endswith(end)
    ]


STUDY = Study(
    name="depth",
    title="simplified blocks at two depths, one four times the other",
    source="Simplified blocks, Figure 6",
    published="SAS and SAS-P keep the training speed of pre-ln from 18 to 72 layers.",
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=TRAINED_COLUMNS,
    revision=TRAINED_REVISION,
    gpus=1,
)
