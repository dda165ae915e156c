"""What a training study amounts to: loss curves, final losses, and who trains slower than whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hessblocks.figures import Panel, Series, mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks.studies.engine import Check, number, word
from hessblocks.studies.shared.differences import difference, exceeds, shown
from hessblocks.studies.shared.trained_points import LOSS

Losses = dict[str, dict[Scalar, float]]
"""Variant → {seed: final loss}; diverged runs are infinite."""


def final_losses(rows: Sequence[Row]) -> Losses:
    """The last validation loss of every run."""
    last: dict[str, dict[Scalar, tuple[float, float]]] = {}
    for row in rows:
        if row["quantity"] == LOSS:
            step = number(row, "step")
            value = float("inf") if row["value"] is None else number(row, "value")
            runs = last.setdefault(word(row, "variant"), {})
            runs[row["seed"]] = max(runs.get(row["seed"], (-1.0, 0.0)), (step, value))
    return {
        variant: {seed: loss for seed, (_, loss) in runs.items()} for variant, runs in last.items()
    }


def loss_table(losses: Losses, rows: Sequence[Row]) -> list[dict[str, object]]:
    """Final loss and parameters of every variant."""
    parameters = {
        word(row, "variant"): row["value"] for row in rows if row["quantity"] == "parameters"
    }
    table: list[dict[str, object]] = []
    for variant, runs in losses.items():
        finite = [loss for loss in runs.values() if loss != float("inf")]
        mean, error = mean_and_error(finite) if finite else (None, None)
        table.append(
            {
                "variant": variant,
                "final_loss": mean,
                "standard_error": error,
                "seeds": len(runs),
                "diverged": len(runs) - len(finite),
                "parameters": parameters.get(variant),
            }
        )
    return table


def slower_check(losses: Losses, slow: str, fast: str, fact: str) -> Check:
    """Whether `slow` ends with the higher loss at equal tokens."""
    expected = f"final loss of {slow} above that of {fast}"
    return less_check(losses, fast, slow, fact, expected=expected, turned=True)


def less_check(
    values: Losses,
    less: str,
    more: str,
    fact: str,
    *,
    expected: str,
    unit: str = "nats",
    turned: bool = False,
) -> Check:
    """Whether `less` has the smaller value over common seeds; shown as less − more, or `turned`."""
    first, second = (more, less) if turned else (less, more)
    found = difference(values, first, second)
    above = exceeds(found, 0.0)
    return Check(
        fact=fact,
        expected=expected,
        ours=shown(found, unit),
        holds=None if above is None else above == turned,
    )


def close_check(losses: Losses, one: str, other: str, within: float, fact: str) -> Check:
    """Whether `one` ends no more than `within` nats above `other`."""
    found = difference(losses, one, other)
    above = exceeds(found, within)
    return Check(
        fact=fact,
        expected=f"final loss of {one} at most {within:g} above that of {other}",
        ours=shown(found, "nats"),
        holds=None if above is None else not above,
    )


def loss_panel(rows: Sequence[Row], variants: Sequence[str], title: str) -> Panel:
    """Validation loss against steps, mean over seeds; a curve ends where one of its seeds diverged."""
    return Panel(
        title=title,
        x_label="training step",
        y_label="validation loss (nats per token)",
        series=tuple(
            series for variant in variants if (series := _curve(rows, variant)) is not None
        ),
    )


def mean_curve(rows: Sequence[Row], variant: str) -> list[tuple[float, float, float]]:
    """(step, validation loss averaged over seeds, its standard error), as far as no seed diverged."""
    at: dict[float, list[float]] = {}
    for seed in run_seeds(rows, variant):
        for step, loss in run_curve(rows, variant, seed):
            at.setdefault(step, []).append(loss)
    runs = len(run_seeds(rows, variant))
    return [(step, *mean_and_error(at[step])) for step in sorted(at) if len(at[step]) == runs]


def run_curve(rows: Sequence[Row], variant: str, seed: Scalar) -> list[tuple[float, float]]:
    """(step, validation loss) of one run; a loss that is not a number is left out."""
    return [
        (number(row, "step"), number(row, "value"))
        for row in rows
        if (row["quantity"], row["variant"], row["seed"]) == (LOSS, variant, seed)
        and row["value"] is not None
    ]


def run_seeds(rows: Sequence[Row], variant: str) -> list[Scalar]:
    """The seeds of a variant, diverged ones too."""
    return list(
        dict.fromkeys(
            row["seed"] for row in rows if (row["quantity"], row["variant"]) == (LOSS, variant)
        )
    )


def _curve(rows: Sequence[Row], variant: str) -> Series | None:
    found = mean_curve(rows, variant)
    if not found:
        return None
    steps, means, errors = zip(*found, strict=True)
    return Series(name=variant, x=steps, y=means, error=errors)


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
            Series(
                name=name,
                x=tuple(float(places.index(place)) for place in each),
                y=tuple(value for value, _ in each.values()),
                error=tuple(error for _, error in each.values()),
                line=False,
            )
            for name, each in values.items()
        ),
    )
