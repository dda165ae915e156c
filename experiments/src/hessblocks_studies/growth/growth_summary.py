"""Summarise growth: compare slopes with theory, plot curves on double logarithmic axes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hessblocks.conventions import Part
from hessblocks.figures import Panel, Scaling, Series
from hessblocks.statistics import mean_and_error
from hessblocks_studies.engine import Check, Rows, Summary
from hessblocks_studies.growth.fits import Growth, fit_growth
from hessblocks_studies.shared import Place, curve, gathered, grouped, mean_places, summary

CURVE = ("layers", "layer", "group", "part")
Curve = tuple[Any, ...]
"""Values of the columns `CURVE`, which identify a curve."""
Range = tuple[float, float]
"""(smallest σ, largest σ)."""
SMALL: Mapping[str, Range] = {"slopes": (0.0, 0.1)}
"""Name of the table of fits → range of σ in which a power law is expected."""
BELOW = 0.04
"""Distance of a guide below its curve, as a share of the y axis."""
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
"""Translation of digits to superscripts."""
REACHED = 0.8
"""Share of a range's largest σ that measurements must reach; until then nothing is reported for the
range, since curves are measured from small σ on."""
SHORT = "not measured up to the largest σ"
"""Note added to a check of a range that is not measured to its end."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Slope that theory predicts for a block."""

    group: str
    """Group of the block."""
    part: Part
    """Part of the Hessian: outer, functional or full."""
    slope: float
    """Exponent of σ."""
    tolerance: float = 0.1
    """Largest distance from the slope that counts as agreement."""
    layers: int | None = None
    """Number of layers of the models; None: any."""
    earlier: bool = False
    """Whether the slope is only expected in the layers before the last."""
    table: str = "slopes"
    """Name of the table for the range of σ."""
    source: str = "theory"
    """Origin of the slope."""


def growth_summary(
    rows: Rows,
    *,
    title: str,
    caption: str,
    expected: Sequence[Expected],
    ranges: Mapping[str, Range] = SMALL,
    published: Rows = (),
    panels: Iterable[Panel] | None = None,
) -> Summary:
    """Summarise a growth study: fits, checks and figure.

    Args:
        rows: measurements so far.
        title: title of the figure.
        caption: text added to the caption about seeds and errors.
        expected: expected slopes.
        ranges: name of the table → range of σ over which slopes are fitted.
        published: the paper's means, in the format of rows.
        panels: panels of the figure; None for one panel per layer.

    Returns:
        The figure, and the comparison of each slope with the expected one.
    """
    fits = {name: _slopes(rows, *ends) for name, ends in ranges.items()}
    seeds = len({row["seed"] for row in rows})
    bars = f"Mean over {seeds} seeds; bars are its standard errors. {caption}".strip()
    if panels is None:
        panels = [
            curves_panel(members, _place(layers, layer), published)
            for (layers, layer), members in grouped(rows, "layers", "layer").items()
        ]
    checks = [
        _slope_check(curve, growth, wanted, ranges[wanted.table])
        for wanted in expected
        for curve, growth in fits[wanted.table].items()
        if curve[2:] == (wanted.group, wanted.part) and wanted.layers in (None, curve[0])
        if not wanted.earlier or curve[1] + 1 < curve[0]
    ]
    tables = {
        name: [
            {**dict(zip(CURVE, curve_name, strict=True)), **asdict(growth)}
            for curve_name, growth in growths.items()
        ]
        for name, growths in fits.items()
    }
    return summary(title, bars, panels, checks, **tables)


def _slopes(rows: Rows, smallest: float, largest: float) -> dict[Curve, Growth]:
    """Fit power laws to all curves between two σ; skip curves that are 0 or too short."""
    growths = {}
    for curve_name, members in grouped(rows, *CURVE).items():
        used = [row for row in members if smallest <= row["sigma"] <= largest * (1 + 1e-9)]
        growth = fit_growth(*([row[name] for row in used] for name in ("sigma", "value", "seed")))
        if growth is not None:
            growths[curve_name] = growth
    return growths


def averaged(rows: Rows) -> list[Place]:
    """List (σ, mean, standard error of the mean) of one curve, from the smallest σ."""
    at = gathered(rows, "sigma")
    return mean_places({key[0]: at[key] for key in sorted(at)})


def curves_panel(
    rows: Rows,
    title: str,
    published: Rows = (),
    *,
    x_scale: Scaling = "log",
    label: Callable[[Curve], str] = lambda curve_name: f"{curve_name[2]}, {curve_name[3]}",
) -> Panel:
    """Plot norms against σ, one series for each curve that is not 0 everywhere.

    Args:
        rows: rows of the curves to draw.
        title: title of the panel.
        published: the paper's means.
        x_scale: scale of the x axis.
        label: function from a curve to the name of its series.

    Returns:
        The panel with a logarithmic y axis, which excludes values of 0.
    """
    theirs = grouped(published, *CURVE)
    series = []
    for curve_name, members in grouped(rows, *CURVE).items():
        if ours := _seen(averaged(members)):
            series.append(curve(label(curve_name), ours))
        means = theirs.get(curve_name, ())
        if printed := _seen((row["sigma"], row["value"], row["standard_error"]) for row in means):
            series.append(curve(label(curve_name), printed, published=True, line=False))
    return Panel(
        title=title,
        x_label="standard deviation σ of the embeddings",
        y_label="Frobenius norm of the block",
        x_scale=x_scale,
        y_scale="log",
        series=tuple(series),
    )


def with_guides(panel: Panel, slopes: Mapping[str, int], ends: Range) -> Panel:
    """Add guides to a panel: lines of a given slope below curves, named as a power of σ.

    Args:
        panel: panel of norms against σ, both logarithmic.
        slopes: name of a series → exponent of σ; series that are not drawn are skipped.
        ends: smallest and largest σ of the guides.

    Returns:
        The panel; each guide is slightly below the first curve with its name.
    """
    heights = [y for series in panel.shown for y in series.y]
    below = (min(heights) / max(heights)) ** BELOW if heights else 1.0
    curves = {series.name: series for series in reversed(panel.shown)}
    guides = [
        _guide(curves[name], slope, ends, below) for name, slope in slopes.items() if name in curves
    ]
    return replace(panel, series=(*panel.series, *guides))


def _guide(beside: Series, slope: int, ends: Range, below: float) -> Series:
    """Draw a guide over the σ of a curve within `ends`; empty if there is only one."""
    x = [sigma for sigma in beside.x if ends[0] <= sigma <= ends[1] * (1 + 1e-9)]
    x = [x[0], x[-1]] if len(x) > 1 else []
    start = below * beside.y[beside.x.index(x[0])] if x else 0.0
    y = tuple(start * (sigma / x[0]) ** slope for sigma in x)
    return Series(name=f"σ{str(slope).translate(RAISED)}", x=tuple(x), y=y, guide=True)


def apart(rows: Rows, *columns: str) -> float:
    """Measure the difference between blocks that a figure draws as one curve.

    Args:
        rows: measurements.
        columns: columns that are equal for the blocks of one curve, besides σ.

    Returns:
        Largest ratio of two mean norms at one σ, infinite if only one of them is 0; 1 if there is
        nothing to compare.
    """
    means = [
        [mean_and_error(values)[0] for values in gathered(members, *CURVE).values()]
        for members in grouped(rows, "sigma", *columns).values()
    ]
    ratios = (max(norms) / min(norms) if min(norms) else math.inf for norms in means if max(norms))
    return max(ratios, default=1.0)


def _seen(places: Iterable[Place]) -> list[Place]:
    return [point for point in places if point[1] > 0]


def _place(layers: int, layer: int) -> str:
    return "one layer" if layers == 1 else f"layer {layer + 1} of {layers}"


def _slope_check(curve: Curve, growth: Growth, wanted: Expected, ends: Range) -> Check:
    layers, layer, group, part = curve
    where = f"σ from {growth.smallest:.3g} to {growth.largest:.3g}"
    check = growth.over_seeds.matches(
        f"slope of the {part} {group} block, {_place(layers, layer)}, {where}",
        f"{wanted.slope:g} ± {wanted.tolerance:g} ({wanted.source})",
        limit=wanted.tolerance,
        around=wanted.slope,
    )
    check = replace(check, ours=growth.text)
    return check if growth.largest >= REACHED * ends[1] else check.void(SHORT)
