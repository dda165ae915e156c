"""Figures of a comparison: curvature of each parameter group, and quantities along training."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hessblocks.figures import Figure, Panel, Series, log_axis, plain_math
from hessblocks.report.captions import seeds_and_error
from hessblocks.report.comparison import MOMENTS, SIGNAL, Comparison, ComparisonRow, Curve, baseline
from hessblocks.statistics import Average, average
from hessblocks.storage import NORM, Metric, ResultRow

ROLES = ("embedding", "query", "key", "value", "projection", "gain", "mlp_in", "mlp_out", "norm",
         "head")  # fmt: skip
PARTS = {
    "outer": "Outer product $H_o$",
    "functional": "Functional $H_f$",
    "full": "Full Hessian $H$",
}
SLOT = 0.86
"""Share of the distance between two roles that points fill."""
FILL = 0.8
"""Share of a preset's slot over which its layers are spread."""
CURVATURE = r"Frobenius norm $\|H\|_F$ (nats per token)"
HEADROOM = 1.1
"""The loss axis ends at most at this multiple of the largest initial loss,"""
SETTLED = 0.2
"""and at most at twice the height of the curves after this share of the steps."""
FEW = 5
"""Most points of a gap of which the axis shows all."""
MARGIN = 0.04
"""Empty share of the axis at each end."""
LOSS = "Loss $L$ (nats per token)"
STEPS = "Optimiser step $t$ (updates)"
NO_BAND = "no band, since there is one seed"
SPLITS = {"train": "Training batches", "validation": "Held-out data"}
GAINS = ("alpha", "beta", "gamma")
OF_GAINS = (
    "Trained gains: α, β, γ of shaped attention; α, β with SA or FF of the skip and the branch of "
    "a sub-block; with a weight's letter those of W = α W_init + β ΔW."
)
ELSEWHERE = "All layers and the gradient norms are in observations.jsonl."
Titled = Mapping[str, Sequence[Curve]]
"""Title of a panel → its curves."""


def all_figures(comparison: Comparison) -> tuple[Figure, ...]:
    """Make the figures that have values, in the order of the page."""
    figures = (
        gap_figure(comparison),
        curvature_figure(comparison),
        loss_figure(comparison),
        *along_figures(comparison),
    )
    return tuple(figure for figure in figures if figure is not None)


def gap_figure(comparison: Comparison) -> Figure | None:
    """Plot held-out loss minus the baseline's over steps, the mean of differences of equal seeds.

    Args:
        comparison: blocks with their losses.

    Returns:
        The figure as data; None if no two blocks have held-out losses at one step.
    """
    base = baseline(comparison.rows).preset
    if not (series := [line for line in _gaps(comparison, base) if line.x]):
        return None
    early = SETTLED * max(line.x[-1] for line in series) if len(series[0].x) > FEW else -1.0
    settled = [y for line in series for x, y in zip(line.x, line.y, strict=True) if x > early]
    reach = max((error for line in series for error in line.error[-1:]), default=0.0)
    low, high = min(0.0, *settled), max(0.0, *settled)
    margin = 2 * MARGIN * (high - low) + reach or 1.0
    ends_at = ", ".join(f"{line.name} {line.y[-1]:+.3f}" for line in series)
    single = " (one seed)" if len(comparison.seeds) == 1 else ""
    return Figure(
        name="gap",
        title=plain_math(f"Gap to {base} at the end, in nats per token: {ends_at}{single}"),
        panels=_panels(
            {plain_math(f"Loss minus that of {base}"): series},
            x_label=STEPS,
            y_label="Gap (nats per token)",
            limits=(low - margin, high + margin),
            band=True,
        ),
        caption=plain_math(
            f"Held-out loss minus that of {base} at the same step and seed: below 0 a block is "
            f"ahead. {'The axis is that of the steps after the first fifth. ' * (early > 0)}"
            + seeds_and_error(comparison.seeds, "the band", NO_BAND)
        ),
        size=(8.0, 4.0),
        columns=1,
        marked=tuple(line.name for line in series),
    )


def _gaps(comparison: Comparison, base: str) -> Iterator[Series]:
    """Average the gap of each other block over the seeds that both have, step by step."""
    ends = {row.preset: row.end for row in comparison.rows}
    losses: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in comparison.results.metrics:
        if line.split == "validation" and line.step < ends[line.preset]:
            losses[line.preset][line.step][line.seed] = line.loss
    for preset in comparison.presets:
        means = {}
        for step, seeds in sorted(losses[preset].items()):
            base_seeds = losses[base].get(step, {})
            gaps = [seeds[seed] - base_seeds[seed] for seed in seeds.keys() & base_seeds.keys()]
            if preset != base and (mean := average(gaps)) is not None:
                means[step] = mean
        yield _averaged(preset, means, list(means.values()))


def curvature_figure(comparison: Comparison) -> Figure | None:
    """Plot one point per group: by role, in each role by preset, in each preset by layer.

    Args:
        comparison: blocks with their norms and losses.

    Returns:
        The figure as data; None if no curvature is measured yet.
    """
    present = dict.fromkeys(norm.role for norm in comparison.norms)
    roles = sorted(present, key=lambda role: (*ROLES, role).index(role))  # unknown ones last
    measured = {(norm.stage, norm.part) for norm in comparison.norms}
    moments = [moment for moment, stage in MOMENTS.items() if stage in {s for s, _ in measured}]
    series = {
        f"{words}, {moment} training": tuple(_points(comparison, MOMENTS[moment], part, roles))
        for part, words in PARTS.items()
        for moment in moments
        if part in {p for _, p in measured}
    }
    if not (values := [y for lines in series.values() for line in lines for y in line.y]):
        return None
    single = "the bar is ± 1 standard error of the estimate"
    error = seeds_and_error(comparison.seeds, "the bar", single)
    end = " Points on the line 0 are exactly zero." if 0 in values else ""
    return Figure(
        name="curvature",
        title="Curvature of each parameter group",
        panels=_panels(
            series,
            x_label="Kind of parameter group",
            y_label=CURVATURE,
            ticks=tuple(role.replace("_", " ") for role in roles),
            **log_axis(values),
        ),
        columns=len(moments),
        size=(6.5, 3.3),
        caption="Frobenius norm of the diagonal block of $H=H_o+H_f$ that belongs to each "
        "parameter group. In each column one point a layer, the first layer leftmost; "
        + plain_math(f"{comparison.sample}. {error}{end}"),
        shares="both",
        marked=comparison.presets,
    )


def _points(
    comparison: Comparison, stage: str, part: str, roles: Sequence[str]
) -> Iterator[Series]:
    """Make one series per preset, spread over its slot beside each role."""
    width = SLOT / len(comparison.presets)
    norms = [norm for norm in comparison.finite_norms if (norm.stage, norm.part) == (stage, part)]
    for number, preset in enumerate(comparison.presets):
        preset_norms = [norm for norm in norms if norm.preset == preset]
        middle = (number + 0.5) * width - SLOT / 2
        x: list[float] = []
        shown: list[ResultRow] = []
        for index, role in enumerate(roles):
            same = [norm for norm in preset_norms if norm.role == role]
            spread = [(order + 0.5) / len(same) - 0.5 for order in range(len(same))]
            x += [index + middle + FILL * width * shift for shift in spread]
            shown += same
        yield replace(_averaged(preset, x, shown), line=False)


def loss_figure(comparison: Comparison) -> Figure | None:
    """Plot the loss of each preset on training batches and on held-out data over steps.

    Args:
        comparison: blocks with their norms and losses.

    Returns:
        The figure as data; None if no loss is recorded yet.
    """
    losses = [c for c in comparison.curves if c.quantity == "loss" and c.part in SPLITS and c.means]
    if not losses:
        return None
    limits = _limits(comparison.results.metrics)
    notes = {row.preset: _note(row) for row in comparison.rows}
    series = {
        title: [replace(_series(c), note=notes[c.preset]) for c in losses if c.part == split]
        for split, title in SPLITS.items()
    }
    cut = any(limits[1] < row.loss < math.inf for row in comparison.results.metrics)
    every = comparison.results.settings.section("training").get("log_every")
    caption = (
        "" if every is None else f"Training loss is averaged over {every} steps.",
        seeds_and_error(comparison.seeds, "the band", NO_BAND),
        f"Values above {limits[1]:.3g} are cut off." if cut else "",
        *map(_ending, comparison.rows),
    )
    return Figure(
        name="loss-steps",
        title="Loss against steps",
        panels=_panels(series, x_label=STEPS, y_label=LOSS, limits=limits, band=True),
        caption=plain_math(" ".join(filter(None, caption))),
        size=(5.5, 4.2),
        shares="both",
        marked=comparison.presets,
    )


def _limits(metrics: Iterable[Metric]) -> tuple[float, float]:
    """Choose the limits of the loss axis; a diverging curve is cut, so that others are visible."""
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


def _note(row: ComparisonRow) -> str:
    """Write the legend of a preset, with the step at which its curve ends."""
    if not row.diverged:
        return row.preset
    return f"{row.preset} (diverged{f' at step {row.end:,}' if math.isfinite(row.end) else ''})"


def _ending(row: ComparisonRow) -> str:
    """Write which seeds diverged, and the first quantity that did; empty if none diverged."""
    causes = {seed: f": {cause}" for seed, cause in row.causes.items()}
    seeds = ", ".join(f"{seed}{causes.get(seed, '')}" for seed in row.diverged)
    return f"{row.preset} diverged (seed {seeds}); its curve ends there." if seeds else ""


def along_figures(comparison: Comparison) -> tuple[Figure | None, ...]:
    """Plot gains, signal and curvature against the step; None if not observed."""
    curves, where = comparison.curves, comparison.sample_along
    last = max((curve.layer for curve in curves if curve.layer is not None), default=None)
    signal = f"At the last layer (number {last}, counted from 0), on {where}. {ELSEWHERE}"
    norms = f"Mean over the observed groups of a role; {where}."
    return (
        _figure(comparison, "gains", _gains(curves), "Gain (mean over layers and heads)", OF_GAINS),
        _figure(comparison, "signal", _signal(curves), "Value (unit above each panel)", signal),
        _figure(comparison, "curvature", _norms(curves), CURVATURE, norms),
    )


def _gains(curves: Iterable[Curve]) -> Titled:
    """Draw one panel per gain, each the mean over layers and heads."""
    titled: dict[str, list[Curve]] = defaultdict(list)
    for curve in sorted(curves, key=lambda curve: ("_" in curve.quantity, curve.quantity)):
        letter, _, index_name = curve.quantity.partition("_")
        if letter in GAINS:
            index = f"_\\mathrm{{{index_name}}}" if index_name else ""
            titled[f"$\\{letter}{index}$"].append(curve)
    return titled


def _signal(curves: Sequence[Curve]) -> Titled:
    """Draw one panel per quantity."""
    lines = {name: [curve for curve in curves if curve.quantity == name] for name in SIGNAL}
    return {SIGNAL[name]: curves for name, curves in lines.items() if curves}


def _norms(curves: Iterable[Curve]) -> Titled:
    """Draw one panel per role and part, the mean over its groups."""
    norms = [curve for curve in curves if curve.quantity == NORM]
    return {
        f"{plain_math(role.replace('_', ' '))}: {words}": [
            curve for curve in norms if (curve.role, curve.part) == (role, part)
        ]
        for role in dict.fromkeys(curve.role for curve in norms)
        for part, words in PARTS.items()
    }


def _figure(comparison: Comparison, name: str, titled: Titled, y: str, about: str) -> Figure | None:
    """Plot values over steps; each panel has its own ordinate, but curvature shares it."""
    series = {title: [_series(curve) for curve in lines] for title, lines in titled.items()}
    if not (values := [y for lines in series.values() for line in lines for y in line.y]):
        return None
    norms = name == "curvature"
    single = "the band is ± 1 standard error of the estimate" if norms else NO_BAND
    scale = log_axis(values) if norms else {}
    return Figure(
        name=f"{name}-along-steps" if norms else name,
        title=f"{name.capitalize()} along training",
        panels=_panels(series, x_label=STEPS, y_label=y, band=True, **scale),
        columns=min(3, len(series)),
        caption=plain_math(f"{about} {seeds_and_error(comparison.seeds, 'the band', single)}"),
        shares="both" if norms else "x",
        marked=comparison.presets,
    )


def _panels(series: Mapping[str, Sequence[Series]], **common: Any) -> tuple[Panel, ...]:
    """Make one panel per title, with common settings."""
    return tuple(Panel(title=name, series=tuple(lines), **common) for name, lines in series.items())


def _series(curve: Curve) -> Series:
    """Plot a curve over steps."""
    return _averaged(curve.preset, curve.x, curve.means)


def _averaged(name: str, x: Iterable[float], means: Sequence[Average | ResultRow]) -> Series:
    """Make a series of means and standard errors; a missing error is 0."""
    errors = tuple(mean.standard_error or 0.0 for mean in means)
    return Series(name=name, x=tuple(x), y=tuple(mean.value for mean in means), error=errors)
