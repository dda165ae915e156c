"""What a training study amounts to: loss curves, final losses, and who trains slower than whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hessblocks.studies.figure import Panel, Series, mean_and_error
from hessblocks.studies.point import Row, Scalar
from hessblocks.studies.settings import number, word
from hessblocks.studies.statistics import student_quantile
from hessblocks.studies.study import Check
from hessblocks.studies.training import LOSS

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


def difference(losses: Losses, first: str, second: str) -> tuple[float, float, int] | None:
    """Mean over common seeds of loss(first) − loss(second), its standard error, and the seeds."""
    common = sorted(set(losses.get(first, {})) & set(losses.get(second, {})), key=str)
    gaps = [losses[first][seed] - losses[second][seed] for seed in common]
    if not gaps or any(gap != gap or abs(gap) == float("inf") for gap in gaps):
        return None
    return *mean_and_error(gaps), len(gaps)


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
    above = _above(found, 0.0)
    return Check(
        fact=fact,
        expected=expected,
        ours=_text(found, unit),
        holds=None if above is None else above == turned,
    )


def close_check(losses: Losses, one: str, other: str, within: float, fact: str) -> Check:
    """Whether `one` ends no more than `within` nats above `other`."""
    found = difference(losses, one, other)
    above = _above(found, within)
    return Check(
        fact=fact,
        expected=f"final loss of {one} at most {within:g} above that of {other}",
        ours=_text(found),
        holds=None if above is None else not above,
    )


def _above(found: tuple[float, float, int] | None, limit: float) -> bool | None:
    """Whether the difference is above the limit; None where seeds are too few or disagree."""
    if found is None or found[2] < 2:
        return None
    mean, error, seeds = found
    reach = student_quantile(0.975, seeds - 1) * error
    return None if abs(mean - limit) < reach else mean > limit


def _text(found: tuple[float, float, int] | None, unit: str = "nats") -> str:
    if found is None:
        return "not finished, or diverged"
    mean, error, seeds = found
    return f"{mean:+.3f} ± {error:.3f} {unit} ({seeds} seeds)"


def loss_panel(rows: Sequence[Row], variants: Sequence[str], title: str) -> Panel:
    """Validation loss against steps, mean over seeds."""
    return Panel(
        title=title,
        x_label="training step",
        y_label="validation loss (nats per token)",
        series=tuple(
            series for variant in variants if (series := _curve(rows, variant)) is not None
        ),
    )


def _curve(rows: Sequence[Row], variant: str) -> Series | None:
    at: dict[float, list[float]] = {}
    for row in rows:
        if row["quantity"] == LOSS and row["variant"] == variant and row["value"] is not None:
            at.setdefault(number(row, "step"), []).append(number(row, "value"))
    if not at:
        return None
    steps = sorted(at)
    means = [mean_and_error(at[step]) for step in steps]
    return Series(
        name=variant,
        x=tuple(steps),
        y=tuple(mean for mean, _ in means),
        error=tuple(error for _, error in means),
    )


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
