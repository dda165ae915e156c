"""Curvature of each parameter group, and how uneven it is, before and after training."""

from __future__ import annotations

from collections.abc import Iterator

from hessblocks.figures import (
    Drawing,
    DrawnPanel,
    DrawnSeries,
    Label,
    Point,
    both,
    log_scale,
    plain_math,
)
from hessblocks.report.comparison.averages import group_norms, heterogeneity
from hessblocks.report.comparison.captions import sample, seeds_and_error, short_names
from hessblocks.statistics import Average, Heterogeneity
from hessblocks.storage import NORM, STAGES, FolderResults

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
    "outer": Label(math="Outer product $H_o$", html="Outer product <i>H</i><sub>o</sub>"),
    "functional": Label(math="Functional $H_f$", html="Functional <i>H</i><sub>f</sub>"),
    "full": Label(math="Full Hessian $H$", html="Full Hessian <i>H</i>"),
}
MOMENTS = dict(zip(STAGES, ("before training", "after training"), strict=True))
SLOT = 0.86
"""Share of the distance between two roles that their points take up."""
FILL = 0.8
"""Share of a preset's slot over which its layers are spread."""
HEADROOM = 2.0
"""Room for the number above a bar, as a factor."""
CURVATURE = Label(
    math=r"Frobenius norm $\Vert H\Vert_F$ (nats per token)",
    html="Frobenius norm ‖<i>H</i>‖<sub>F</sub> (nats per token)",
)
RATIO = Label(
    math=r"Heterogeneity $\max\Vert H\Vert_F\,/\,\min\Vert H\Vert_F$ (no unit)",
    html="Heterogeneity max‖<i>H</i>‖<sub>F</sub> / min‖<i>H</i>‖<sub>F</sub> (no unit)",
)


def curvature_drawing(results: FolderResults) -> Drawing | None:
    """One point a group: roles side by side, in each role presets, in each preset layers.

    Args:
        results: a run folder.

    Returns:
        The figure's content; None where no curvature was measured yet.
    """
    rows = results.select(NORM)
    roles = _roles(row.role for row in rows)
    parts = [part for part in PARTS if any(row.part == part for row in rows)]
    stages = [stage for stage in STAGES if any(row.stage == stage for row in rows)]
    panels = tuple(_panel(results, part, stage, roles) for part in parts for stage in stages)
    values = [point.y for panel in panels for series in panel.series for point in series.points]
    if not values:
        return None
    return Drawing(
        name="curvature",
        title="Curvature of each parameter group",
        kind="points",
        panels=panels,
        columns=len(stages),
        x=both("Kind of parameter group"),
        y=CURVATURE,
        caption=_curvature_caption(results, any(value == 0 for value in values)),
        legend=tuple((preset, preset) for preset in results.presets),
        categories=tuple(role.replace("_", " ") for role in roles),
        log=log_scale(values),
    )


def _roles(found: Iterator[str]) -> tuple[str, ...]:
    """The roles that occur, in the order of the block, unknown ones last."""
    present = dict.fromkeys(found)
    known = [role for role in ROLES if role in present]
    return (*known, *(role for role in present if role not in ROLES))


def _panel(results: FolderResults, part: str, stage: str, roles: tuple[str, ...]) -> DrawnPanel:
    words = PARTS[part]
    return DrawnPanel(
        title=Label(math=f"{words.math}, {MOMENTS[stage]}", html=f"{words.html}, {MOMENTS[stage]}"),
        series=tuple(
            DrawnSeries(key=preset, points=tuple(_points(results, preset, stage, part, roles)))
            for preset in results.presets
        ),
    )


def _points(
    results: FolderResults, preset: str, stage: str, part: str, roles: tuple[str, ...]
) -> Iterator[Point]:
    width = SLOT / len(results.presets)
    place = (results.presets.index(preset) + 0.5) * width - SLOT / 2
    norms = group_norms(results, preset, stage, part)
    for index, role in enumerate(roles):
        same = [group for group in norms if group.role == role]
        for order, group in enumerate(same):
            spread = (order + 0.5) / len(same) - 0.5
            yield Point(
                x=index + place + FILL * width * spread,
                y=group.norm.value,
                error=group.norm.standard_error or 0.0,
                name=group.group,
            )


def _curvature_caption(results: FolderResults, zeros: bool) -> Label:
    layers = "In each column one point a layer, the first layer leftmost"
    error = seeds_and_error(results, "the bar", "the bar is ± 1 standard error of the estimate")
    end = f"{layers}; {sample(results)}. {error}"
    if zeros:
        end += " Points on the line 0 are exactly zero."
    return Label(
        math="Frobenius norm of the diagonal block of $H=H_o+H_f$ that belongs to each "
        f"parameter group. {plain_math(end)}",
        html="Frobenius norm of the diagonal block of <i>H</i> = <i>H</i><sub>o</sub> + "
        f"<i>H</i><sub>f</sub> that belongs to each parameter group. {both(end).html}",
    )


def heterogeneity_drawing(results: FolderResults) -> Drawing | None:
    """Largest over smallest group norm of each preset, before and after training.

    Args:
        results: a run folder.

    Returns:
        The figure's content; None where no curvature was measured yet.
    """
    ratios = {
        (preset, stage): ratio
        for preset in results.presets
        for stage in STAGES
        if (ratio := heterogeneity(results, preset, stage)) is not None
    }
    if not ratios:
        return None
    moments = {
        stage: words for stage, words in MOMENTS.items() if any(s == stage for _, s in ratios)
    }
    return Drawing(
        name="heterogeneity",
        title="How uneven curvature is",
        kind="bars",
        panels=(
            DrawnPanel(
                title=both("Before and after training"),
                series=tuple(
                    DrawnSeries(key=words, points=tuple(_bars(results, ratios, stage)))
                    for stage, words in moments.items()
                ),
            ),
        ),
        columns=1,
        x=both("Preset"),
        y=RATIO,
        caption=both(_ratio_caption(results)),
        legend=tuple((words, words) for words in moments.values()),
        categories=results.presets,
        log=log_scale([1.0, *(HEADROOM * ratio.ratio.value for ratio in ratios.values())]),
    )


def _bars(
    results: FolderResults, ratios: dict[tuple[str, str], Heterogeneity[Average]], stage: str
) -> Iterator[Point]:
    for index, preset in enumerate(results.presets):
        if (preset, stage) in ratios:
            found = ratios[preset, stage]
            yield Point(
                x=index + (-0.2 if stage == "initial" else 0.2),
                y=found.ratio.value,
                error=found.ratio.standard_error or 0.0,
                name=f"{found.largest} over {found.smallest}",
            )


def _ratio_caption(results: FolderResults) -> str:
    text = (
        "Largest over smallest Frobenius norm of the groups' blocks of the full Hessian; 1 is "
        f"perfectly even; {sample(results)}. "
    )
    text += seeds_and_error(results, "the bar", "the bar is ± 1 standard error of the two norms")
    return f"{text} {zero_groups(results)}".rstrip()


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
