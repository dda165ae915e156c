"""Pictures of a study for its page: result first, other panels separately, references as lines."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from hessblocks.figures import Figure, Heatmap, Panel, Series, number

TABLE_OF_PAIRS = "bigram table"
"""Name of a reference in the studies."""
RESULTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gains": (
            "values: skipless, Figure 4",
            "projections: skipless, Figure 4",
            "α, Figure 17",
            "β, Figure 18",
        ),
        "trial": (
            "narrow: runs, above pre-ln, zero queries",
            "narrow: runs, one thing changed",
            "narrow: runs",
            "wide: runs against time",
        ),
        "simplification": (
            "spread, all weight matrices",
            "runs",
            "common matrices, before training",
            "common matrices, after training",
        ),
        "optimisers": (
            "runs",
            "steps to pre-ln's loss",
            "gap and unevenness before training",
            "gap and unevenness after training with AdamW",
        ),
        "edge-of-stability": (
            "warm-up",
            "no warm-up",
            "warm-up: how near the edge",
            "no warm-up: how near the edge",
        ),
    }
)
"""Study → panels of its result, for studies with more panels than a screen shows."""
IN_WORDS = ("restrict-updates",)
"""Studies whose references are so far away that lines would compress the result."""
THUMBNAIL = (3.0, 2.3)
"""Size of a panel of the index in inches."""


def with_lines(panel: Panel, lines: Mapping[str, float] = MappingProxyType({})) -> Panel:
    """Draw references as thin lines with names; always draw the bigram table.

    Args:
        panel: panel whose series have points.
        lines: name of a reference → y value.

    Returns:
        The panel, without the references in its legend.
    """
    shown = [series for series in panel.shown if series.name != TABLE_OF_PAIRS]
    ends = [x for series in shown for x in series.x]
    table = {series.name: series.y[0] for series in panel.shown if series.name == TABLE_OF_PAIRS}
    if not ends or panel.kind == "bars":
        return panel
    across = (min(ends), max(ends))
    guides = (
        Series(name=name, x=across, y=(height, height), guide=True)
        for name, height in {**table, **lines}.items()
    )
    return replace(panel, series=(*shown, *guides))


def study_pictures(name: str, figure: Figure) -> tuple[Figure, Figure | None]:
    """Split the figure of a study into the result and the other panels.

    Args:
        name: name of the study.
        figure: stored figure.

    Returns:
        The result, and the other panels; None if there are none.
    """
    panels = [_mended(panel) for panel in figure.panels]
    caption = figure.caption
    if name in IN_WORDS:
        caption += f" Not drawn: {_in_words(figure)}."
        panels = [_without(panel) for panel in panels]
    wanted = RESULTS.get(name)
    if wanted is None:
        return replace(figure, panels=tuple(panels), caption=caption), None
    titled = {panel.title: panel for panel in panels}
    first = tuple(titled.pop(title) for title in wanted)
    rest = replace(figure, panels=tuple(titled.values()), caption="")
    return replace(figure, panels=first, caption=caption), rest


def small_picture(figure: Figure) -> Figure:
    """Reduce a figure to its first panel, with letters for a thumbnail."""
    panel = replace(figure.panels[0], title="")
    if isinstance(panel, Panel):
        guides = (series for series in panel.series if not series.guide)
        panel = replace(panel, series=tuple(guides), x_label="", y_label="")
    else:
        panel = replace(panel, names=("",) * len(panel.names), label="")
    return Figure(title="", caption="", panels=(panel,), size=THUMBNAIL, marked=figure.names)


def _mended(panel: Panel | Heatmap) -> Panel | Heatmap:
    """Add references to a panel as lines."""
    if isinstance(panel, Heatmap):
        return panel
    edge = {"the edge": 1.0} if panel.y_label == "sharpness over the edge" else {}
    return with_lines(panel, edge)


def _in_words(figure: Figure) -> str:
    """List the y values of references as text."""
    every = {series.name: series for panel in figure.plots for series in panel.shown}
    references = (every[name] for name in (TABLE_OF_PAIRS, "gpt2") if name in every)
    return ", ".join(f"{series.name} {number(series.y[0])}" for series in references)


def _without(panel: Panel | Heatmap) -> Panel | Heatmap:
    """Remove references from a panel."""
    if isinstance(panel, Heatmap):
        return panel
    left = (series for series in panel.series if series.name not in (TABLE_OF_PAIRS, "gpt2"))
    return replace(panel, series=tuple(left))
