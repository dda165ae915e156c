"""Curvature of each parameter group, and how uneven it is, before and after training."""

from __future__ import annotations

from collections.abc import Iterator

from hessblocks.figures import Figure, Panel, Series, log_scale, plain_math
from hessblocks.report.comparison.averages import averaged, group_norms, heterogeneity
from hessblocks.report.comparison.captions import sample, seeds_and_error, short_names
from hessblocks.statistics import Average, Heterogeneity
from hessblocks.storage import NORM, STAGES, FolderResults, ResultRow

ROLES = (
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
)
PARTS = {
    "outer": "Outer product $H_o$",
    "functional": "Functional $H_f$",
    "full": "Full Hessian $H$",
}
MOMENTS = dict(zip(STAGES, ("before training", "after training"), strict=True))
SLOT = 0.86
"""Share of the distance between two roles that their points take up."""
FILL = 0.8
"""Share of a preset's slot over which its layers are spread."""
HEADROOM = 2.0
"""Room for the number above a bar, as a factor."""
CURVATURE = r"Frobenius norm $\|H\|_F$ (nats per token)"
RATIO = r"Heterogeneity $\max\|H\|_F\,/\,\min\|H\|_F$ (no unit)"


def curvature_figure(results: FolderResults) -> Figure | None:
    """One point a group: roles side by side, in each role presets, in each preset layers.

    Args:
        results: a run folder.

    Returns:
        The figure's content; None where no curvature was measured yet.
    """
    rows = results.select(NORM)
    present = dict.fromkeys(row.role for row in rows)
    roles = sorted(present, key=lambda role: (*ROLES, role).index(role))  # unknown ones last
    stages = [stage for stage in STAGES if any(row.stage == stage for row in rows)]
    found = {
        f"{words}, {MOMENTS[stage]}": tuple(
            averaged(preset, _placed(results, preset, stage, part, roles), line=False)
            for preset in results.presets
        )
        for part, words in PARTS.items()
        for stage in stages
        if any(row.part == part for row in rows)
    }
    values = [y for series in found.values() for one in series for y in one.y]
    if not values:
        return None
    scale, ticks = log_scale(values), tuple(role.replace("_", " ") for role in roles)
    layers = "In each column one point a layer, the first layer leftmost"
    error = seeds_and_error(results, "the bar", "the bar is ± 1 standard error of the estimate")
    end = " Points on the line 0 are exactly zero." if 0 in values else ""
    return Figure(
        name="curvature",
        title="Curvature of each parameter group",
        panels=tuple(
            Panel(
                title=title,
                x_label="Kind of parameter group",
                y_label=CURVATURE,
                series=series,
                ticks=ticks,
                log=scale,
            )
            for title, series in found.items()
        ),
        columns=len(stages),
        size=(6.5, 3.3),
        caption="Frobenius norm of the diagonal block of $H=H_o+H_f$ that belongs to each parameter "
        "group. " + plain_math(f"{layers}; {sample(results)}. {error}{end}"),
        shares="both",
        marked=results.presets,
    )


def _placed(
    results: FolderResults, preset: str, stage: str, part: str, roles: list[str]
) -> Iterator[tuple[float, ResultRow]]:
    """Abscissa and norm of each group."""
    width = SLOT / len(results.presets)
    place = (results.presets.index(preset) + 0.5) * width - SLOT / 2
    norms = group_norms(results, preset, stage, part)
    for index, role in enumerate(roles):
        same = [group for group in norms if group.role == role]
        for order, group in enumerate(same):
            spread = (order + 0.5) / len(same) - 0.5
            yield index + place + FILL * width * spread, group


def heterogeneity_figure(results: FolderResults) -> Figure | None:
    """Largest over smallest group norm of each preset, before and after training, with its interval.

    Args:
        results: a run folder.

    Returns:
        The figure's content; None where no curvature was measured yet.
    """
    ratios = {
        stage: [
            (place, ratio)
            for place, preset in enumerate(results.presets)
            if (ratio := heterogeneity(results, preset, stage)) is not None
        ]
        for stage in STAGES
    }
    values = [found.high or found.ratio.value for own in ratios.values() for _, found in own]
    if not values:
        return None
    panel = Panel(
        title="Before and after training",
        x_label="Preset",
        y_label=RATIO,
        series=tuple(_bars(MOMENTS[stage], own) for stage, own in ratios.items() if own),
        kind="bars",
        ticks=results.presets,
        log=log_scale([1.0, *(HEADROOM * value for value in values)]),
        by_tick=True,
    )
    error = seeds_and_error(results, "the bar", "the bar is the 95 % interval of the estimate")
    caption = (
        "Largest over smallest Frobenius norm of the groups' blocks of the full Hessian; 1 is "
        f"perfectly even; {sample(results)}. {error} {zero_groups(results)}"
    )
    return Figure(
        name="heterogeneity",
        title="How uneven curvature is",
        panels=(panel,),
        size=(9.0, 4.2),
        caption=plain_math(caption.rstrip()),
        marked=results.presets,
    )


def _bars(name: str, places: list[tuple[int, Heterogeneity[Average]]]) -> Series:
    """One bar a preset, with the interval of one seed or the standard error over several."""
    reach = [
        (one.ratio.standard_error or 0.0,) * 2
        if one.low is None or one.high is None
        else (one.ratio.value - one.low, one.high - one.ratio.value)
        for _, one in places
    ]
    return Series(
        name=name,
        x=tuple(float(place) for place, _ in places),
        y=tuple(one.ratio.value for _, one in places),
        error=tuple(above for _, above in reach),
        below=tuple(below for below, _ in reach),
    )


def zero_groups(results: FolderResults) -> str:
    """Which groups have a norm of exactly zero, of which blocks and when; empty if none has."""
    places: dict[str, list[str]] = {}
    for preset in results.presets:
        for stage, words in MOMENTS.items():
            ratio = heterogeneity(results, preset, stage)
            if ratio is not None and ratio.zero_groups:
                names = short_names(ratio.zero_groups)
                places.setdefault(names, []).append(f"{preset} {words}")
    return " ".join(
        f"Exactly zero and left out: {groups} ({', '.join(where)})."
        for groups, where in places.items()
    )
