"""Figures along training: loss, gains, signal and curvature of each preset."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from hessblocks.figures import Figure, Series, log_axis, plain_math
from hessblocks.report.captions import sample, seeds_and_error
from hessblocks.report.comparison import SIGNAL, Comparison, ComparisonRow, Curve
from hessblocks.report.group_figures import CURVATURE, PARTS, panels
from hessblocks.storage import NORM, Metric

MOST_POINTS = 300
"""A longer curve is averaged over windows of successive points."""
HEADROOM = 1.1
"""The axis goes up to this multiple of the largest initial loss,"""
SETTLED = 0.2
"""and to twice the height of the curves from this share of the steps on, so they stay apart."""
MARGIN = 0.04
"""Empty share of the axis at each end."""
LOSS = "Loss $L$ (nats per token)"
AXES = {
    "steps": ("steps", "Optimiser step $t$ (updates)"),
    "tokens": ("tokens", "Training tokens $n$ (tokens)"),
    "seconds": ("training time", r"Training time $\tau$ (seconds)"),
    "flops": ("operations", "Training operations $c$ (floating-point operations)"),
    "loss": ("loss", LOSS),
}
"""Abscissas along training: words and label."""
NO_BAND = "no band, since there is one seed"
SPLITS = {"train": "Training batches", "validation": "Held-out data"}
GAINS = ("alpha", "beta", "gamma")
ALIGNMENTS = ("steps", "tokens", "seconds", "loss")
"""Abscissas of curvature along training."""
OF_GAINS = (
    "Trained gains: α, β, γ of shaped attention; α, β with SA or FF of the skip and the branch of "
    "a sub-block; with a weight's letter those of W = α W_init + β ΔW."
)
ELSEWHERE = "All layers and the gradient norms are in observations.jsonl."
Titled = Mapping[str, Sequence[Curve]]
"""Title → its curves."""


def loss_figure(found: Comparison, against: str) -> Figure | None:
    """Plot the loss of each preset on training batches and on held-out data.

    Args:
        found: the comparison.
        against: steps, tokens, seconds or flops.

    Returns:
        The figure's content; None where no loss was written yet, or nothing of the axis.
    """
    losses = [c for c in found.curves if c.quantity == "loss" and c.part in SPLITS and c.means]
    if all(math.isnan(x) for one in losses for x in one.x[against]):
        return None
    window = max(math.ceil(len(one.means) / MOST_POINTS) for one in losses)
    limits = _limits(found.results.metrics)
    notes = {row.preset: _note(row) for row in found.rows}
    words, label = AXES[against]
    series = {
        title: [
            _thinned(replace(one.series(against), note=notes[one.preset]), window)
            for one in losses
            if one.part == split
        ]
        for split, title in SPLITS.items()
    }
    every = found.results.settings.section("training").get("log_every")
    caption = (
        "" if every is None else f"Training loss is averaged over {every} steps.",
        seeds_and_error(found.seeds, "the band", NO_BAND),
        *_remarks(window, limits[1], found.results.metrics),
        *map(_ending, found.rows),
    )
    return Figure(
        name=f"loss-{against}",
        title=f"Loss against {words}",
        panels=panels(series, x_label=label, y_label=LOSS, limits=limits, band=True),
        caption=plain_math(" ".join(filter(None, caption))),
        size=(5.5, 4.2),
        shares="both",
        marked=found.presets,
    )


def _thinned(curve: Series, window: int) -> Series:
    """Average over windows; an error is the root mean square of those in its window."""
    if window == 1 or len(curve.x) <= MOST_POINTS:
        return curve
    cuts = [slice(start, start + window) for start in range(0, len(curve.x), window)]
    return replace(
        curve,
        x=tuple(fmean(curve.x[cut]) for cut in cuts),
        y=tuple(fmean(curve.y[cut]) for cut in cuts),
        error=tuple(
            math.hypot(*curve.error[cut]) / math.sqrt(len(curve.error[cut])) for cut in cuts
        ),
    )


def _limits(metrics: Iterable[Metric]) -> tuple[float, float]:
    """Choose the ends of the loss axis; a diverging curve leaves it, and others stay visible."""
    finite = [row for row in metrics if math.isfinite(row.loss)]
    first: dict[tuple[str, int, str], float] = {}
    for row in sorted(finite, key=lambda row: row.step):
        first.setdefault((row.preset, row.seed, row.split), row.loss)
    low = min(row.loss for row in finite)
    high = min(max(row.loss for row in finite), HEADROOM * max(first.values()))
    last = max(row.step for row in finite)
    settled = max(row.loss for row in finite if row.step >= SETTLED * last)
    high = min(high, 2 * settled - low) if settled > low else high
    margin = MARGIN * (high - low) or 1.0
    return low - margin, high + margin


def _remarks(window: int, top: float, metrics: Iterable[Metric]) -> Iterator[str]:
    """Say which values are not drawn as they were measured."""
    if window > 1:
        yield f"Curves longer than {MOST_POINTS} points are averaged over {window} points."
    if any(top < row.loss < math.inf for row in metrics):
        yield f"Values above {top:.3g} are cut off."


def _note(row: ComparisonRow) -> str:
    """Name the preset in the legend, with the step at which its curve ends."""
    if not row.diverged:
        return row.preset
    return f"{row.preset} (diverged{f' at step {row.end:,}' if math.isfinite(row.end) else ''})"


def _ending(row: ComparisonRow) -> str:
    """Say which seeds diverged, and which quantity first; empty if none did."""
    causes = {seed: f": {cause}" for seed, cause in row.causes.items()}
    seeds = ", ".join(f"{seed}{causes.get(seed, '')}" for seed in row.diverged)
    return f"{row.preset} diverged (seed {seeds}); its curve ends there." if seeds else ""


def along_figures(found: Comparison) -> tuple[Figure | None, ...]:
    """Plot gains, signal, and curvature against each of `ALIGNMENTS`; None if not observed."""
    settings, curves = found.results.settings, found.curves
    where = sample(settings.section("observation").get("sample", settings.section("curvature")))
    last = max((one.layer for one in curves if one.layer is not None), default=None)
    signal = f"At the last layer (number {last}, counted from 0), on {where}. {ELSEWHERE}"
    norms = f"Mean over the observed groups of a role; {where}."
    return (
        _figure(found, "gains", _gains(curves), "Gain (mean over layers and heads)", OF_GAINS),
        _figure(found, "signal", _signal(curves), "Value (unit above each panel)", signal),
        *(
            _figure(found, f"curvature-along-{name}", _norms(curves), CURVATURE, norms, name)
            for name in ALIGNMENTS
        ),
    )


def _gains(curves: Iterable[Curve]) -> Titled:
    """Draw one panel per gain, each the mean over layers and heads."""
    found: dict[str, list[Curve]] = defaultdict(list)
    for curve in sorted(curves, key=lambda one: ("_" in one.quantity, one.quantity)):
        letter, _, of = curve.quantity.partition("_")
        if letter in GAINS:
            index = f"_\\mathrm{{{of}}}" if of else ""
            found[f"$\\{letter}{index}$"].append(curve)
    return found


def _signal(curves: Sequence[Curve]) -> Titled:
    """Draw one panel per quantity."""
    found = {
        title: [one for one in curves if one.quantity == name] for name, title in SIGNAL.items()
    }
    return {title: own for title, own in found.items() if own}


def _norms(curves: Iterable[Curve]) -> Titled:
    """Draw one panel per role and part, the mean over its groups."""
    found = [one for one in curves if one.quantity == NORM]
    return {
        f"{plain_math(role.replace('_', ' '))}: {words}": [
            one for one in found if (one.role, one.part) == (role, part)
        ]
        for role in dict.fromkeys(one.role for one in found)
        for part, words in PARTS.items()
    }


def _figure(
    found: Comparison, name: str, titled: Titled, y: str, about: str, against: str = ""
) -> Figure | None:
    """Plot values over steps, each panel with its own ordinate, or curvature over an abscissa."""
    axis = against or "steps"
    series = {title: [one.series(axis) for one in own] for title, own in titled.items()}
    values = [y for own in series.values() for one in own for y in one.y]
    if not values:
        return None
    words, label = AXES[axis]
    by = f"Curvature along training, by {'step' if axis == 'steps' else words}"
    if against == "loss":
        about += " The loss is that on the same batch; training goes from right to left."
    single = "the band is ± 1 standard error of the estimate" if against else NO_BAND
    scale = log_axis(values) if against else {}
    return Figure(
        name=name,
        title=by if against else f"{name.capitalize()} along training",
        panels=panels(series, x_label=label, y_label=y, band=True, **scale),
        columns=min(3, len(series)),
        caption=plain_math(f"{about} {seeds_and_error(found.seeds, 'the band', single)}"),
        shares="both" if against else "x",
        marked=found.presets,
    )
