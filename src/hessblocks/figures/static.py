"""Static figures: each drawing as png and svg, the same bytes for the same numbers."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter
from PIL import Image

from hessblocks.figures.drawings import Drawing, DrawnPanel, DrawnSeries, band
from hessblocks.figures.log_scale import LogScale
from hessblocks.figures.style import MATPLOTLIB, RESOLUTION, Mark, marks
from hessblocks.figures.text import number, plain_math
from hessblocks.storage import atomic_path

HEIGHTS = {"lines": 4.2, "points": 3.1, "bars": 4.2}
"""Height of one panel, in inches."""
WIDTHS = {"lines": 5.5, "points": 6.5, "bars": 9.0}
"""Width of one panel, in inches."""
LINE = 0.2
"""Height of a line of the caption, in inches."""
LETTERS = 13.5
"""Letters of the caption on an inch."""
LEGEND_COLUMNS = 5
COLOURS = 96
"""Colours of a png."""
MARKERS = 7
"""Markers along a curve."""
MARKER = 4.2
"""Size of a point, in typographic points; half of it where a preset has many."""
MANY = 60
GREY = "#666666"


def write_figures(drawings: tuple[Drawing, ...], presets: tuple[str, ...], folder: Path) -> None:
    """Write each drawing to `folder` as <name>.png and <name>.svg.

    Args:
        drawings: what to draw.
        presets: all presets, in the order that gives them their marks.
        folder: made when missing.

    Raises:
        RunError: a file cannot be written.
    """
    with mpl.rc_context(dict(MATPLOTLIB)):
        for drawing in drawings:
            figure = draw(drawing, marks(presets))
            with atomic_path(folder / f"{drawing.name}.png") as path:
                _raster(figure).save(path, dpi=(RESOLUTION, RESOLUTION), optimize=True)
            figure.set_layout_engine("none")  # places are settled; the svg need not find them again
            with atomic_path(folder / f"{drawing.name}.svg") as path:
                FigureCanvasSVG(figure)
                figure.savefig(path, metadata={"Date": None, "Creator": None})


def _raster(figure: Figure) -> Image.Image:
    """The figure in few colours, which makes a png a third as large."""
    figure.set_dpi(RESOLUTION)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    return image.quantize(COLOURS, dither=Image.Dither.NONE)


def draw(drawing: Drawing, looks: dict[str, Mark]) -> Figure:
    """The drawing as a matplotlib figure with legend and caption below the panels."""
    rows = -(-len(drawing.panels) // drawing.columns)
    width = WIDTHS[drawing.kind] * drawing.columns
    caption = textwrap.wrap(drawing.caption.math, int(width * LETTERS))
    handles = _legend(drawing, looks)
    written = LINE * (len(caption) + 1)
    below = written + LINE * 1.3 * -(-len(handles) // LEGEND_COLUMNS) + 0.1
    height = HEIGHTS[drawing.kind] * rows + below
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", rect=(0, below / height, 1, 1 - below / height))
    axes = figure.subplots(
        rows, drawing.columns, sharex=True, sharey=not drawing.own_scales, squeeze=False
    )
    for axis in axes.flat[len(drawing.panels) :]:
        axis.set_axis_off()
    for place, (panel, axis) in enumerate(zip(drawing.panels, axes.flat, strict=False)):
        _draw_panel(axis, drawing, panel, looks)
        if place % drawing.columns == 0:
            axis.set_ylabel(drawing.y.math if rows == 1 else "")
        if place >= len(drawing.panels) - drawing.columns:
            axis.set_xlabel(drawing.x.math)
            axis.tick_params(labelbottom=True)
    if rows > 1:
        figure.supylabel(drawing.y.math, fontsize=MATPLOTLIB["axes.labelsize"])
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, written / height),
        ncols=min(LEGEND_COLUMNS, len(handles)),
        borderaxespad=0,
    )
    figure.text(
        0.12 / width, (written - LINE / 2) / height, "\n".join(caption), va="top", fontsize=10
    )
    return figure


def _draw_panel(axis: Axes, drawing: Drawing, panel: DrawnPanel, looks: dict[str, Mark]) -> None:
    if len(drawing.panels) > 1:
        axis.set_title(panel.title.math, loc="left")
    if drawing.categories:
        _categories(axis, drawing)
    if drawing.log is not None:
        _log_axis(axis, drawing.log)
    if drawing.limits is not None:
        axis.set_ylim(*drawing.limits)
    for order, series in enumerate(panel.series):
        if drawing.kind == "lines":
            _draw_line(axis, series, looks[series.key], order, drawing.log)
        elif drawing.kind == "points" and drawing.log is not None:
            _draw_points(axis, series, looks[series.key], drawing.log)
        elif drawing.log is not None:
            _draw_bars(axis, series, order, drawing, looks)


def _categories(axis: Axes, drawing: Drawing) -> None:
    count = len(drawing.categories)
    axis.set_xlim(-0.5, count - 0.5)
    names = [plain_math(name) for name in drawing.categories]
    axis.set_xticks(range(count), names)
    if count > 6:
        for label in axis.get_xticklabels():
            label.set(rotation=30, horizontalalignment="right", rotation_mode="anchor")
    axis.tick_params(axis="x", length=0)
    for edge in range(count - 1):
        axis.axvline(edge + 0.5, color="#CCCCCC", linewidth=0.7, zorder=0)


def _log_axis(axis: Axes, scale: LogScale) -> None:
    axis.set_yscale("log")
    axis.set_ylim(*scale.limits)
    places = [10.0**exponent for exponent in scale.ticks]
    names = [f"$10^{{{exponent}}}$" for exponent in scale.ticks]
    if scale.has_zero:
        places, names = [scale.zero, *places], ["0", *names]
        axis.axhline(scale.zero, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axis.yaxis.set_major_locator(FixedLocator(places))
    axis.yaxis.set_major_formatter(FixedFormatter(names))
    axis.yaxis.set_minor_formatter(NullFormatter())
    few = scale.highest - scale.lowest <= 3
    axis.yaxis.set_minor_locator(
        FixedLocator(
            [
                digit * 10.0**exponent
                for exponent in range(scale.lowest, scale.highest)
                for digit in (range(2, 10) if few else (1,))
            ]
        )
    )


def _draw_line(
    axis: Axes, series: DrawnSeries, look: Mark, order: int, scale: LogScale | None
) -> None:
    x = [point.x for point in series.points]
    y = [scale.place(point.y) if scale else point.y for point in series.points]
    gap = max(1, len(x) // MARKERS)
    style = (0, look.dashes) if look.dashes else "solid"
    start = order * gap // 5 % gap
    axis.plot(x, y, color=look.colour, linestyle=style, marker=look.marker, markevery=(start, gap))
    if any(point.error for point in series.points):
        low, high = band(series, scale)
        axis.fill_between(x, low, high, color=look.colour, alpha=0.2, linewidth=0)


def _draw_points(axis: Axes, series: DrawnSeries, look: Mark, scale: LogScale) -> None:
    reach = [scale.reach(point.y, point.error) for point in series.points]
    axis.errorbar(
        [point.x for point in series.points],
        [scale.place(point.y) for point in series.points],
        yerr=[[low for low, _ in reach], [high for _, high in reach]],
        fmt=look.marker,
        color=look.colour,
        markersize=MARKER if len(series.points) < MANY else MARKER / 2,
        markeredgewidth=0,
        elinewidth=1,
    )


def _draw_bars(
    axis: Axes, series: DrawnSeries, order: int, drawing: Drawing, looks: dict[str, Mark]
) -> None:
    assert drawing.log is not None, "bars have a logarithmic axis"
    low = drawing.log.limits[0]
    for point in series.points:
        look = looks[drawing.categories[round(point.x)]]
        axis.bar(
            point.x,
            point.y - low,
            width=0.36,
            bottom=low,
            yerr=[[drawing.log.reach(point.y, point.error)[0]], [point.error]],
            ecolor=GREY,
            capsize=3,
            **_bar_look(look.colour, order),
        )
        axis.annotate(
            number(point.y),
            (point.x, point.y + point.error),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=10,
        )


def _bar_look(colour: str, order: int) -> dict[str, Any]:
    """The first series hatched, the second solid."""
    if order == 0:
        return {"facecolor": "white", "edgecolor": colour, "hatch": "////"}
    return {"facecolor": colour, "edgecolor": colour}


def _legend(drawing: Drawing, looks: dict[str, Mark]) -> list[Artist]:
    if drawing.kind == "bars":
        return [
            Patch(label=text, **_bar_look(GREY, order))
            for order, (_, text) in enumerate(drawing.legend)
        ]
    handles: list[Artist] = []
    for key, text in drawing.legend:
        look = looks[key]
        line = Line2D([], [], color=look.colour, marker=look.marker, label=plain_math(text))
        line.set_linestyle((0, look.dashes) if look.dashes else "solid")
        if drawing.kind == "points":
            line.set_linestyle("none")
        handles.append(line)
    return handles
