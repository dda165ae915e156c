"""What a training study amounts to: loss curves, final losses, and who trains slower than whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hessblocks.figures import Figure, Panel, mean_and_error
from hessblocks.storage import Scalar
from hessblocks.studies.engine import Check, Rows, Summary
from hessblocks.studies.shared.differences import difference_check
from hessblocks.studies.shared.gathering import Place, curve, mean_places, of_quantity
from hessblocks.studies.shared.trained_points import LOSS

Losses = dict[str, dict[Scalar, float]]
"""Variant → {seed: final loss}; diverged runs are infinite."""


def final_losses(rows: Rows) -> Losses:
    """The last validation loss of every run."""
    last: dict[str, dict[Scalar, tuple[float, float]]] = {}
    for row in of_quantity(rows, LOSS):
        value = math.inf if row["value"] is None else row["value"]
        seeds = last.setdefault(row["variant"], {})
        seeds[row["seed"]] = max(seeds.get(row["seed"], (-1.0, 0.0)), (row["step"], value))
    return {
        variant: {seed: loss for seed, (_, loss) in seeds.items()}
        for variant, seeds in last.items()
    }


def loss_summary(
    rows: Rows,
    *,
    title: str,
    panels: Sequence[Panel],
    checks: Sequence[Check],
    caption: str = "",
) -> Summary:
    """A figure of losses with the table of the final ones.

    Args:
        rows: measurements, all or those there are.
        title: of the figure.
        panels: of the figure.
        checks: facts.
        caption: before what is said of text, seeds and errors.

    Returns:
        The summary.
    """
    how = "Python source; mean over seeds, bars are its standard errors."
    return Summary(
        figure=Figure(title=title, caption=f"{caption} {how}".lstrip(), panels=tuple(panels)),
        checks=checks,
        tables={"losses": loss_table(final_losses(rows), rows)},
    )


def finite(values: Mapping[str, Mapping[Scalar, float]]) -> dict[str, tuple[float, float]]:
    """Variant → (mean, standard error) over seeds, of those of which no seed diverged."""
    return {
        name: mean_and_error(list(seeds.values()))
        for name, seeds in values.items()
        if math.isfinite(sum(seeds.values()))
    }


def loss_table(losses: Losses, rows: Rows) -> list[dict[str, object]]:
    """Final loss and parameters of every variant."""
    parameters = {row["variant"]: row["value"] for row in of_quantity(rows, "parameters")}
    table: list[dict[str, object]] = []
    for variant, runs in losses.items():
        kept = [loss for loss in runs.values() if math.isfinite(loss)]
        mean, error = mean_and_error(kept) if kept else (None, None)
        table.append(
            {
                "variant": variant,
                "final_loss": mean,
                "standard_error": error,
                "seeds": len(runs),
                "diverged": len(runs) - len(kept),
                "parameters": parameters.get(variant),
            }
        )
    return table


def slower_check(losses: Losses, slow: str, fast: str, fact: str) -> Check:
    """Whether `slow` ends with the higher loss at equal tokens."""
    expected = f"final loss of {slow} above that of {fast}"
    return difference_check(losses, slow, fast, fact, expected=expected, above=True)


def close_check(losses: Losses, one: str, other: str, within: float, fact: str) -> Check:
    """Whether `one` ends no more than `within` nats above `other`."""
    expected = f"final loss of {one} at most {within:g} above that of {other}"
    return difference_check(losses, one, other, fact, expected=expected, above=False, limit=within)


def loss_panel(rows: Rows, variants: Sequence[str], title: str) -> Panel:
    """Validation loss against steps, mean over seeds; a curve ends where one of its seeds diverged."""
    found = {variant: mean_curve(rows, variant) for variant in variants}
    return Panel(
        title=title,
        x_label="training step",
        y_label="validation loss (nats per token)",
        series=tuple(curve(variant, places) for variant, places in found.items() if places),
    )


def mean_curve(rows: Rows, variant: str) -> list[Place]:
    """(step, validation loss averaged over seeds, its standard error), as far as no seed diverged."""
    at: dict[float, list[float]] = {}
    seeds = run_seeds(rows, variant)
    for seed in seeds:
        for step, loss in run_curve(rows, variant, seed):
            at.setdefault(step, []).append(loss)
    return mean_places({step: at[step] for step in sorted(at) if len(at[step]) == len(seeds)})


def run_curve(rows: Rows, variant: str, seed: Scalar) -> list[tuple[float, float]]:
    """(step, validation loss) of one run; a loss that is not a number is left out."""
    return [
        (float(row["step"]), row["value"])
        for row in of_quantity(rows, LOSS)
        if (row["variant"], row["seed"]) == (variant, seed) and row["value"] is not None
    ]


def run_seeds(rows: Rows, variant: str) -> list[Scalar]:
    """The seeds of a variant, diverged ones too."""
    found = (row["seed"] for row in of_quantity(rows, LOSS) if row["variant"] == variant)
    return list(dict.fromkeys(found))


def places_panel(
    values: Mapping[str, Mapping[str, tuple[float, float]]], y_label: str, *, bars: bool
) -> Panel:
    """Named places side by side: name of the series → {place: (value, standard error)}.

    Args:
        values: of each series.
        y_label: of the values.
        bars: bars from 0, for what has a meaningful 0; points on an axis of their own otherwise.
    """
    places = list(dict.fromkeys(place for each in values.values() for place in each))
    return Panel(
        title="",
        x_label="",
        y_label=y_label,
        kind="bars" if bars else "lines",
        ticks=tuple(places),
        series=tuple(
            curve(name, [(float(places.index(at)), *each[at]) for at in each], line=False)
            for name, each in values.items()
            if each
        ),
    )
