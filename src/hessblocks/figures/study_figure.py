"""The figure of a study, drawn from its figure.json: points with error bars, bars, or maps."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from hessblocks.errors import RunError
from hessblocks.figures.style import MARKS, MATPLOTLIB, RESOLUTION, Mark, marks
from hessblocks.storage import atomic_path

PANEL = (4.6, 3.6)
"""Width and height of a panel, in inches."""
NARROWEST = 6.5
"""Smallest width of a figure, in inches."""
MOST_COLUMNS = 2
"""More make the letters too small for a page."""
LABEL_LETTERS = 32
"""Letters of a label beside the ordinate on a line; below the abscissa there is room for more."""
LINE = 0.2
"""Height of a line of the caption, in inches."""
LETTERS = 13
"""Letters of the caption on an inch."""
ALONE = "parallel"
"""Whose colour bars have that stand alone: black would be heavy."""
MANY = 60
"""Points of a series above which it is drawn as a bare line."""


def write_study_figure(folder: Path) -> list[Path]:
    """Draw `figure.json` of a study's folder to figures/<study>.png and .svg.

    Args:
        folder: of one study.

    Returns:
        The files, png first; none where the figure has no panels yet.

    Raises:
        RunError: figure.json is missing or damaged, or a file cannot be written.
    """
    described = _read(folder / "figure.json")
    if not described["panels"]:
        return []
    paths = [folder / "figures" / f"{folder.name}.{suffix}" for suffix in ("png", "svg")]
    with mpl.rc_context(dict(MATPLOTLIB)):
        figure = draw_study_figure(described)
        for path, canvas in zip(paths, (FigureCanvasAgg, FigureCanvasSVG), strict=True):
            canvas(figure)
            plain = {"Date": None, "Creator": None} if path.suffix == ".svg" else {}
            with atomic_path(path) as temporary:
                figure.savefig(temporary, dpi=RESOLUTION, metadata=plain)
    return paths


def draw_study_figure(described: Mapping[str, Any]) -> Figure:
    """The figure that figure.json describes, legend and caption below its panels."""
    panels = described["panels"]
    columns = min(MOST_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    looks = marks(_names(panels))
    width = max(PANEL[0] * columns, NARROWEST)
    caption = textwrap.wrap(described["caption"], int(width * LETTERS))
    entries = _entries(panels)
    legend_rows = -(-len(entries) // (2 * columns)) if len(entries) > 1 else 0
    title = textwrap.wrap(described["title"], int(width * LETTERS * 0.75))
    below = LINE * (len(caption) + 1.4) + LINE * legend_rows
    height = PANEL[1] * rows + below + 1.5 * LINE * len(title)
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", rect=(0, below / height, 1, 1 - below / height))
    figure.suptitle("\n".join(title), x=0.01, ha="left", fontsize=12)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw(figure, axis, panel, looks)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    if legend_rows:
        handles = _handles(axes.flat)
        figure.legend(
            handles=[handles[entry] for entry in entries],
            loc="lower center",
            bbox_to_anchor=(0.5, LINE * (len(caption) + 0.6) / height),
            borderaxespad=0.1,
            ncols=2 * columns,
            fontsize=9,
        )
    figure.text(
        0.01, LINE * (len(caption) + 0.5) / height, "\n".join(caption), va="top", fontsize=9.5
    )
    return figure


def _read(path: Path) -> dict[str, Any]:
    try:
        described: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        described["title"], described["caption"], described["panels"]
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged; run the same `hessblocks reproduce` again.") from error
    return described


def _names(panels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of all series, each once, in the order of the legend."""
    return list(
        dict.fromkeys(series["name"] for panel in panels for series in panel.get("series", []))
    )


def _entries(panels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Texts of the legend, ours before the published ones."""
    every = [series for panel in panels for series in panel.get("series", [])]
    ordered = sorted(every, key=lambda series: series["published"])
    return list(dict.fromkeys(_label(series) for series in ordered))


def _label(series: Mapping[str, Any]) -> str:
    return f"{series['name']} (published)" if series["published"] else str(series["name"])


def _handles(axes: Any) -> dict[str, Any]:
    """A legend entry for each label, from whichever panel has it first."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def _draw(figure: Figure, axis: Axes, panel: Mapping[str, Any], looks: Mapping[str, Mark]) -> None:
    axis.set_title(panel["title"], loc="left", fontsize=10.5)
    if "values" in panel:
        _draw_map(figure, axis, panel)
        return
    axis.set_xlabel(textwrap.fill(panel["x_label"], LABEL_LETTERS + 18))
    axis.set_ylabel(textwrap.fill(panel["y_label"], LABEL_LETTERS))
    for order, series in enumerate(panel["series"]):
        if panel["kind"] == "bars":
            _draw_bars(axis, series, looks[series["name"]], order, len(panel["series"]))
        else:
            _draw_series(axis, series, looks[series["name"]])
    axis.set_yscale(panel["y_scale"])
    axis.set_xscale(panel["x_scale"])
    if panel["x_scale"] == "log":
        _few_ticks(axis)
    if panel["ticks"]:
        axis.set_xticks(range(len(panel["ticks"])), panel["ticks"], rotation=30, ha="right")


def _few_ticks(axis: Axes) -> None:
    """Numbers at 1, 2 and 5 of a short logarithmic axis; long ones are left to matplotlib."""
    low, high = axis.get_xlim()
    if high < 30 * low:
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_locator(NullLocator())


def _draw_series(axis: Axes, series: Mapping[str, Any], look: Mark) -> None:
    """One row of points; published ones hollow and not joined."""
    published = series["published"]
    joined = series["line"] and not published
    axis.errorbar(
        series["x"],
        series["y"],
        yerr=series["error"] or None,
        label=_label(series),
        color=look.colour,
        marker="" if len(series["x"]) > MANY else look.marker,
        markersize=7 if published else 3.5 if series["line"] else 6,
        markerfacecolor="none" if published else look.colour,
        linestyle=((0, look.dashes) if look.dashes else "solid") if joined else "none",
        linewidth=1.2,
        elinewidth=0.8,
    )


def _draw_bars(
    axis: Axes, series: Mapping[str, Any], look: Mark, order: int, together: int
) -> None:
    width = 0.8 / together
    look = MARKS[ALONE] if together == 1 else look
    places = [x + (order - (together - 1) / 2) * width for x in series["x"]]
    hatched = together == 2 and order == 0  # tells a pair apart without colours
    axis.bar(
        places,
        series["y"],
        width=width,
        yerr=series["error"] or None,
        label=_label(series),
        facecolor="none" if series["published"] or hatched else look.colour,
        edgecolor=look.colour,
        hatch="////" if hatched else None,
        capsize=2,
    )


def _draw_map(figure: Figure, axis: Axes, panel: Mapping[str, Any]) -> None:
    """A matrix as colours, lines between blocks."""
    values = np.asarray(panel["values"])
    low = float(np.quantile(values, 0.02))
    image = axis.imshow(values, cmap="cividis", vmin=low, interpolation="nearest")
    figure.colorbar(image, ax=axis, label=panel["label"], shrink=0.85)
    edges = [0, *panel["edges"], len(values)]
    for edge in panel["edges"]:
        axis.axhline(edge - 0.5, color="white", linewidth=0.8)
        axis.axvline(edge - 0.5, color="white", linewidth=0.8)
    middles = [(a + b) / 2 - 0.5 for a, b in itertools.pairwise(edges)]
    axis.set_xticks(middles, panel["names"], rotation=45, ha="right", fontsize=9)
    axis.set_yticks(middles, panel["names"], fontsize=9)
    axis.grid(visible=False)
