"""Draw a figure with matplotlib: panels, with legend and caption below."""

import itertools
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rcParams, style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawn
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from hessblocks import figures

NARROW = 4.0
"""Panels narrower than this, in inches, have few tick labels."""
NARROWEST = 6.5
"""Smallest width of a figure, in inches."""
MOST_COLUMNS = 2
"""Default number of panels side by side; with more, letters are small on a page."""
LETTERS = 13
"""Letters per inch of the caption; a title has three quarters as many."""
X_LETTERS = 11
"""Letters per inch of an axis label."""
LINE = 0.2
"""Height of a line of the caption, in inches."""
LEGEND_INCHES = 2.2
"""Least width of an entry of the legend, in inches."""
LEGEND_SIZE = 9.5
"""Size of the legend's letters, in points."""
ALONE = figures.MARKS["parallel"]
"""Mark of a single series of bars, since black would be too dark."""
MARKERS = 7
"""Number of markers on a curve of more than `MANY` points."""
MANY = 60
"""Most points of a curve with a marker at each, and most unconnected points with large markers."""
NUMBERS = 7
"""Most numbered ticks of a panel."""
LETTER = 0.085
"""Width of a letter beside a tick or above a bar, in inches."""
GREY = "#666666"
SIZE = (6.4, 4.0)
"""Size of a single panel, in inches."""
OF_FILES = ("title", "caption")
"""Identifiers of texts that a picture has in a file but not on a page."""
Looks = Mapping[str, figures.Mark]


@style.context(figures.MATPLOTLIB)
def draw(figure: figures.Figure, narrowest: float = NARROWEST) -> Drawn:
    """Draw a figure for `write_picture`; each name has the same mark in all panels.

    Args:
        figure: figure as data.
        narrowest: smallest width, in inches; less for a phone.

    Returns:
        The figure of matplotlib.
    """
    panels, looks = figure.panels, figures.marks(figure.names)
    columns = min(figure.columns or MOST_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = max(figure.size[0] * columns, narrowest)
    caption = textwrap.wrap(figure.caption, int(width * LETTERS))
    title = textwrap.wrap(figure.title, int(width * LETTERS * 0.75))
    handles = _legend(figure, looks)
    across = _columns([str(handle.get_label()) for handle in handles], width)
    written = LINE * (len(caption) + 0.6)
    below = written + LINE * (1.2 * math.ceil(len(handles) / across) + 0.6)
    below += 1.6 * LINE if figure.shares != "none" else 0.0
    height = figure.size[1] * rows + below + 1.5 * LINE * len(title)
    drawn = Drawn(figsize=(width, height))
    drawn.set_layout_engine("constrained", rect=(0, below / height, 1, 1 - below / height))
    drawn.suptitle("\n".join(title), x=0.01, ha="left", fontsize=12, gid="title")
    shared, both = figure.shares in ("x", "both"), figure.shares == "both"
    axes = drawn.subplots(rows, columns, sharex=shared, sharey=both, squeeze=False)
    for index, (axis, panel) in enumerate(zip(axes.flat, panels, strict=False)):
        _draw_panel(axis, panel, looks, width / columns)
        if figure.shares != "none":
            bottom = (below - 1.6 * LINE) / height
            drawn.supxlabel(axis.get_xlabel(), y=bottom, va="bottom", fontsize=11)
            drawn.supylabel(axis.get_ylabel().replace("\n", " "), fontsize=11)
            axis.set(xlabel="", ylabel="")
            axis.tick_params(labelbottom=index >= len(panels) - columns or not shared)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    if handles:
        where: Any = {"loc": "lower center", "bbox_to_anchor": (0.5, written / height)}
        drawn.legend(
            handles=handles, ncols=across, borderaxespad=0.1, fontsize=LEGEND_SIZE, **where
        )
    small: Any = {"va": "top", "fontsize": 9.5, "gid": "caption"}
    drawn.text(0.01, (written - 0.1 * LINE) / height, "\n".join(caption), **small)
    return drawn


def plot(panel: figures.Panel, ax: Axes | None = None) -> Drawn:
    """Draw one panel, without the title and the caption of a study's figure.

    Args:
        panel: panel as data.
        ax: axes to draw on; None: a new figure.

    Returns:
        The figure of matplotlib.
    """
    looks = figures.marks(series.name for series in panel.shown if not series.guide)
    with style.context(figures.MATPLOTLIB):
        ax, figure = on_axes(ax, SIZE)
        _draw_panel(ax, panel, looks, SIZE[0])
        if handles := _legend(figures.Figure(title="", caption="", panels=(panel,)), looks):
            ax.legend(handles=handles, fontsize=9)
    return figure


def on_axes(ax: Axes | None, size: tuple[float, float]) -> tuple[Axes, Drawn]:
    """Return axes and their figure; without axes, those of a new figure."""
    if ax is None:
        ax = Drawn(figsize=size, layout="constrained").subplots()
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Drawn)
    return ax, figure


def _columns(labels: Sequence[str], width: float) -> int:
    """Count the columns of a legend that fit a width in inches; matplotlib fills columns."""
    beside = rcParams["legend.handlelength"] + rcParams["legend.handletextpad"]
    widths = [TextPath((0, 0), label, size=LEGEND_SIZE).get_extents().width for label in labels]
    for count in range(min(len(labels), int(width / LEGEND_INCHES)), 1, -1):
        each = math.ceil(len(labels) / count)
        longest = [max(widths[n : n + each]) for n in range(0, len(labels), each)]
        gaps = count * beside + (count - 1) * rcParams["legend.columnspacing"]
        if sum(longest) + LEGEND_SIZE * gaps <= 72 * width:
            return count
    return 1


def _legend(figure: figures.Figure, looks: Looks) -> list[Artist]:
    """Draw a sample of each legend entry; none for a single entry, which the title names."""
    entries = figure.legend
    if len(entries) < 2 and not any(panel.by_tick for panel in figure.plots):
        return []
    handles: list[Artist] = []
    for text, series in entries.items():
        panel = next(panel for panel in figure.plots if any(series is s for s in panel.series))
        label = figures.plain_math(text)
        if panel.kind == "bars":
            colour = GREY if panel.by_tick else looks[series.name].colour
            handles.append(Patch(label=label, color=colour, **_bar(panel, series)))
        else:
            handles.append(Line2D([], [], label=label, **_line(series, looks[series.name])))
    return handles


def _draw_panel(
    axis: Axes, panel: figures.Panel | figures.Heatmap, looks: Looks, width: float
) -> None:
    title = textwrap.fill(panel.title, int(width * LETTERS * 0.7))
    axis.set_title(title, loc="left", fontsize=10.5, y=1)  # a fixed position
    if isinstance(panel, figures.Heatmap):
        _draw_map(axis, panel)
        return
    axis.set_xlabel(textwrap.fill(panel.x_label, int(width * X_LETTERS)))
    axis.set_ylabel(textwrap.fill(panel.y_label, 32))
    for order, series in enumerate(panel.shown):
        if panel.kind == "bars":
            _draw_bars(axis, panel, series, order, looks)
        elif series.guide:
            _draw_guide(axis, series)
        else:
            _draw_series(axis, panel, series, order, looks)
    limits = panel.limits
    options = {"linthresh": -3 * limits[0]} if limits and panel.y_scale == "symlog" else {}
    axis.set_yscale(panel.y_scale, **options)
    if limits:
        axis.set_ylim(limits)
        axis.yaxis.set_minor_formatter(NullFormatter())
    if panel.y_scale == "linear":
        # a common factor or summand of the numbers would stand in the title
        formatter = axis.yaxis.get_major_formatter()
        formatter.format_ticks([*axis.get_yticks()])
        if formatter.get_offset():
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:.12g}")
    alone = len(axis.get_shared_y_axes().get_siblings(axis)) == 1
    if panel.y_scale == "log" and alone and not panel.limits:
        # an error bar that almost reaches zero would take up most of the axis
        lowest = min((y for series in panel.shown for y in series.y if y > 0), default=0.0)
        if axis.get_ylim()[0] < lowest / 10:
            axis.set_ylim(bottom=lowest / 10)
    if panel.y_scale == "symlog":
        axis.axhline(0, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axis.set_xscale(panel.x_scale)
    if panel.x_scale == "log":
        _few_ticks(axis, {x for series in panel.shown for x in series.x})
    if panel.ticks:
        _name_ticks(axis, panel, width)
    elif panel.x_scale == "linear" and width < NARROW:
        axis.locator_params(axis="x", nbins=4)
        axis.tick_params(labelsize=9)


def _few_ticks(axis: Axes, values: Collection[float]) -> None:
    """Label a logarithmic axis at its values if they are few, else at 1, 2 and 5."""
    low, high = axis.get_xlim()
    if high < 30 * low:
        few = FixedLocator(sorted(values)) if len(values) <= NUMBERS - 2 else None
        axis.xaxis.set_major_locator(few or LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())


def _cut(names: Sequence[str], letters: int) -> list[str]:
    """Shorten long names at their end, else in the middle, else not at all, so that they differ."""
    half = letters // 2
    for head, tail in ((letters - 1, 0), (half - 1, half)):
        shortened = [n if len(n) <= letters else f"{n[:head]}…{n[len(n) - tail :]}" for n in names]
        if len(set(shortened)) == len(set(names)):
            return shortened
    return list(names)


def _name_ticks(axis: Axes, panel: figures.Panel, width: float) -> None:
    """Label the ticks, slanted if space is short; of numbers only a few.

    Categories with many points are separated by lines.
    """
    slant: Any = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    names = list(map(figures.plain_math, _cut(panel.ticks, int(width / 2 / LETTER))))
    counted = all(name.isdecimal() for name in names[1:])
    step = math.ceil(len(names) / NUMBERS) if counted else 1
    names = names[::step]
    narrow = width / len(names) < LETTER * max(map(len, names)) + 0.2
    axis.set_xticks(range(0, len(panel.ticks), step), names, **(slant if narrow else {}))
    if panel.y_scale != "linear":
        axis.set_xlim(-0.5, len(panel.ticks) - 0.5)
        axis.tick_params(axis="x", length=0)
        for edge in range(len(panel.ticks) - 1):
            axis.axvline(edge + 0.5, color="#CCCCCC", linewidth=0.7, zorder=0)


def _line(series: figures.Series, look: figures.Mark) -> dict[str, Any]:
    """Choose the style of a series; published numbers are hollow and not joined."""
    loose = series.published or not series.line
    dashes = (0, look.dashes) if look.dashes else "solid"
    size = 7.0 if series.published else 3.5 if series.line else 6.0
    if loose and not series.published and len(series.x) > 10:
        size = 4.2 if len(series.x) < MANY else 2.1
    return {
        "color": look.colour,
        "marker": look.marker,
        "markersize": size,
        "markerfacecolor": "none" if series.published else look.colour,
        "linestyle": "none" if loose else dashes,
        "linewidth": 1.4,
    }


def _draw_series(
    axis: Axes, panel: figures.Panel, series: figures.Series, order: int, looks: Looks
) -> None:
    """Draw one series, joined or not, with error bars or a band."""
    look, alone = looks[series.name], len(looks) == 1
    drawn = _line(series, look)
    if len(series.x) > MANY and drawn["linestyle"] != "none":
        gap = len(series.x) // MARKERS
        # staggered, so that coinciding curves all show their markers
        drawn["markevery"] = (order * gap // 5 % gap, gap)
        drawn["marker"] = "" if alone else drawn["marker"]
    if panel.band and any(series.error):
        low = [y - below for y, below in zip(series.y, series.below or series.error, strict=True)]
        high = [y + length for y, length in zip(series.y, series.error, strict=True)]
        axis.fill_between(series.x, low, high, color=look.colour, alpha=0.2, linewidth=0)
    drawn |= {"yerr": None if panel.band else _lengths(series), "xerr": series.across or None}
    axis.errorbar(series.x, series.y, elinewidth=0.8, **drawn)


def _draw_guide(axis: Axes, series: figures.Series) -> None:
    axis.plot(series.x, series.y, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    end = (series.x[-1], series.y[-1])
    beside: Any = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
    axis.annotate(figures.plain_math(series.name), end, color=GREY, fontsize=9.5, **beside)


def _bar(panel: figures.Panel, series: figures.Series) -> dict[str, Any]:
    """Choose the style of bars; the first of a pair is hatched, to differ without colour."""
    hatched = len(panel.shown) == 2 and series is panel.shown[0]
    return {"fill": not hatched and not series.published, "hatch": "////" if hatched else None}


def _draw_bars(
    axis: Axes, panel: figures.Panel, series: figures.Series, order: int, looks: Looks
) -> None:
    together = len(panel.shown)
    width = 0.8 / together
    own = ALONE if together == 1 else looks.get(series.name, ALONE)
    colours = [(looks[panel.ticks[round(x)]] if panel.by_tick else own).colour for x in series.x]
    bars = axis.bar(
        [x + (order - (together - 1) / 2) * width for x in series.x],
        series.y,
        width=0.9 * width if panel.by_tick else width,
        yerr=_lengths(series),
        color=colours,
        edgecolor=colours,
        ecolor=GREY if panel.by_tick else "black",
        capsize=2,
        **_bar(panel, series),
    )
    room = axis.bbox.width / axis.figure.dpi / len(panel.ticks) / together
    longest = max((len(text) for shown in panel.shown for text in shown.numbers), default=0)
    if series.numbers and room > LETTER * longest:  # for all series or none
        axis.bar_label(bars, series.numbers, padding=0.6, fontsize=10)


def _lengths(series: figures.Series) -> list[list[float]] | None:
    """Return lengths of error bars, down and up; bars of length 0 get no cap."""
    if not series.error:
        return None
    sides = (series.below or series.error, series.error)
    return [[length or math.nan for length in side] for side in sides]


def _draw_map(axis: Axes, panel: figures.Heatmap) -> None:
    """Draw a matrix as colours, with lines between blocks."""
    values = np.asarray(panel.values)
    low = float(np.nanquantile(values, 0.02))  # NaN is left blank
    image = axis.imshow(values, cmap="viridis", vmin=low, interpolation="nearest")
    axis.figure.colorbar(image, ax=axis, label=panel.label, shrink=0.85)
    axis.grid(visible=False)
    if panel.rows:
        axis.set_aspect("auto")
        axis.set_yticks(range(len(panel.rows)), panel.rows, fontsize=9)
        if panel.columns:
            names = [figures.plain_math(name) for name in panel.columns]
            slant = 90 if max(map(len, names)) > 2 else 0
            axis.set_xticks(range(len(names)), names, rotation=slant, fontsize=8)
        return
    for edge in panel.edges:
        axis.axhline(edge - 0.5, color="white", linewidth=0.8)
        axis.axvline(edge - 0.5, color="white", linewidth=0.8)
    middles = [(a + b) / 2 - 0.5 for a, b in itertools.pairwise([0, *panel.edges, len(values)])]
    axis.set_xticks(middles, panel.names, rotation=45, ha="right", fontsize=9)
    axis.set_yticks(middles, panel.names, fontsize=9)
