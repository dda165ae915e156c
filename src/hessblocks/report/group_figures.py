"""Figures of curvature before and after training: of each parameter group, and how uneven it is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hessblocks.figures import Figure, Panel, Series, log_axis, plain_math
from hessblocks.report.captions import sample, seeds_and_error, zero_groups
from hessblocks.report.comparison import MOMENTS, Comparison, averaged, by_layer
from hessblocks.statistics import Average, Heterogeneity
from hessblocks.storage import ResultRow

ROLES = [
    "embedding",
    "query",
    "key",
    "value",
    "projection",
    "gain",
    "mlp_in",
    "mlp_out",
    "norm",
    "head",
]
PARTS = {
    "outer": "Outer product $H_o$",
    "functional": "Functional $H_f$",
    "full": "Full Hessian $H$",
}
SLOT = 0.86
"""Share of the distance between two roles that their points take up."""
FILL = 0.8
"""Share of a preset's slot over which its layers are spread."""
HEADROOM = 2.0
"""Room for the number above a bar, as a factor."""
CURVATURE = r"Frobenius norm $\|H\|_F$ (nats per token)"
RATIO = r"Heterogeneity $\max\|H\|_F\,/\,\min\|H\|_F$ (no unit)"


def curvature_figure(found: Comparison) -> Figure | None:
    """Plot one point per group: by role, in each role by preset, in each preset by layer.

    Args:
        found: the comparison.

    Returns:
        The figure's content; None where no curvature was measured yet.
    """
    present = dict.fromkeys(norm.role for norm in found.norms)
    roles = sorted(present, key=lambda role: (*ROLES, role).index(role))  # unknown ones last
    measured = {(norm.stage, norm.part) for norm in found.norms}
    moments = [moment for moment, stage in MOMENTS.items() if stage in {one for one, _ in measured}]
    series = {
        f"{words}, {moment} training": tuple(_points(found, MOMENTS[moment], part, roles))
        for part, words in PARTS.items()
        for moment in moments
        if part in {one for _, one in measured}
    }
    values = [y for own in series.values() for one in own for y in one.y]
    if not values:
        return None
    layers = "In each column one point a layer, the first layer leftmost"
    where = sample(found.results.settings.section("curvature"))
    error = seeds_and_error(found.seeds, "the bar", "the bar is ± 1 standard error of the estimate")
    end = " Points on the line 0 are exactly zero." if 0 in values else ""
    return Figure(
        name="curvature",
        title="Curvature of each parameter group",
        panels=panels(
            series,
            x_label="Kind of parameter group",
            y_label=CURVATURE,
            ticks=tuple(role.replace("_", " ") for role in roles),
            **log_axis(values),
        ),
        columns=len(moments),
        size=(6.5, 3.3),
        caption=(
            "Frobenius norm of the diagonal block of $H=H_o+H_f$ that belongs to each parameter "
            "group. "
        )
        + plain_math(f"{layers}; {where}. {error}{end}"),
        shares="both",
        marked=found.presets,
    )


def panels(series: Mapping[str, Sequence[Series]], **common: Any) -> tuple[Panel, ...]:
    """Make one panel per title; all else is equal."""
    return tuple(Panel(title=name, series=tuple(own), **common) for name, own in series.items())


def _points(found: Comparison, stage: str, part: str, roles: Sequence[str]) -> Iterator[Series]:
    """Make one series per preset, spread over its slot beside each role."""
    width = SLOT / len(found.presets)
    norms = by_layer(norm for norm in found.norms if (norm.stage, norm.part) == (stage, part))
    for number, preset in enumerate(found.presets):
        own = [norm for norm in norms if norm.preset == preset]
        place = (number + 0.5) * width - SLOT / 2
        x: list[float] = []
        shown: list[ResultRow] = []
        for index, role in enumerate(roles):
            same = [norm for norm in own if norm.role == role]
            spread = [(order + 0.5) / len(same) - 0.5 for order in range(len(same))]
            x += [index + place + FILL * width * one for one in spread]
            shown += same
        yield replace(averaged(preset, x, shown), line=False)


def heterogeneity_figure(found: Comparison) -> Figure | None:
    """Plot largest over smallest group norm of each preset, before and after, with its interval.

    Args:
        found: the comparison.

    Returns:
        The figure's content; None where no curvature was measured yet.
    """
    places = {
        moment: {x: row.ratios[moment] for x, row in enumerate(found.rows) if moment in row.ratios}
        for moment in MOMENTS
    }
    values = [one.high or one.ratio.value for own in places.values() for one in own.values()]
    if not values:
        return None
    panel = Panel(
        title="Before and after training",
        x_label="Preset",
        y_label=RATIO,
        series=tuple(_bars(f"{moment} training", own) for moment, own in places.items() if own),
        kind="bars",
        ticks=found.presets,
        by_tick=True,
        **log_axis([1.0, *(HEADROOM * value for value in values)]),
    )
    where = sample(found.results.settings.section("curvature"))
    error = seeds_and_error(found.seeds, "the bar", "the bar is the 95 % interval of the estimate")
    caption = (
        "Largest over smallest Frobenius norm of the groups' blocks of the full Hessian; 1 is "
        f"perfectly even; {where}. {error} {zero_groups(found.rows)}"
    )
    return Figure(
        name="heterogeneity",
        title="How uneven curvature is",
        panels=(panel,),
        size=(9.0, 4.2),
        caption=plain_math(caption.rstrip()),
        marked=found.presets,
    )


def _bars(name: str, places: Mapping[int, Heterogeneity[Average]]) -> Series:
    """Draw one bar per preset, with the interval of one seed or the standard error over several."""
    reach = [
        (one.ratio.standard_error or 0.0,) * 2
        if one.low is None or one.high is None
        else (one.ratio.value - one.low, one.high - one.ratio.value)
        for one in places.values()
    ]
    return Series(
        name=name,
        x=tuple(map(float, places)),
        y=tuple(one.ratio.value for one in places.values()),
        error=tuple(above for _, above in reach),
        below=tuple(below for below, _ in reach),
    )
