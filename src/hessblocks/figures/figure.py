"""Figure as data: its content, without drawing; used for files and for pages.

Titles, labels and captions may contain $mathematics$. Names of series and ticks are plain text.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from hessblocks.figures.style import PHONE

Scaling = Literal["linear", "log", "symlog"]
"""Scaling of an axis; symlog shows zero below its first decade."""
Shares = Literal["none", "labels", "x", "both"]
"""Labels or axes that the panels of a figure share."""
NAMED_ROW = 0.16
"""Least height of a named row of a map, in inches; its other names take up to `UNDER`."""
UNDER = 2.4
LEAST_ROWS = 8
"""Fewest rows of height for a legible colour scale."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Series: points with a common name and style."""

    name: str
    """Name in the legend; series of one name share a colour in all panels."""
    x: tuple[float, ...]
    """Abscissas."""
    y: tuple[float, ...]
    """Ordinates."""
    error: tuple[float, ...] = ()
    """Half length of each error bar; 0: not known; empty: no error bars."""
    below: tuple[float, ...] = ()
    """Lower length of each error bar, if it differs from the upper length `error`; else empty."""
    across: tuple[float, ...] = ()
    """Half length of each horizontal error bar."""
    numbers: tuple[str, ...] = ()
    """Text above each bar, if it fits; empty for none."""
    published: bool = False
    """Whether the numbers are from the paper; they are drawn hollow."""
    line: bool = True
    """Whether the points are joined."""
    note: str = ""
    """Text in the legend instead of the name."""
    guide: bool = False
    """Whether it is a reference line: thin, without points and legend, with a name at its end."""

    def __post_init__(self) -> None:
        """Leave out error bars that are NaN, as for a single seed."""
        unknown = [math.isnan(error) for error in self.error]
        if any(unknown):
            errors = tuple(0.0 if math.isnan(error) else error for error in self.error)
            object.__setattr__(self, "error", () if all(unknown) else errors)

    @property
    def label(self) -> str:
        """Text in the legend."""
        return f"{self.name} (published)" if self.published else self.note or self.name


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Panel: one pair of axes."""

    title: str
    """Title above the panel."""
    x_label: str
    """Label in words, with symbol and unit."""
    y_label: str
    """Label in words, with symbol and unit."""
    series: tuple[Series, ...]
    """Series of the panel."""
    x_scale: Scaling = "linear"
    """Scale of the abscissa."""
    y_scale: Scaling = "linear"
    """Scale of the ordinate."""
    kind: Literal["lines", "bars"] = "lines"
    """Points and lines, or bars side by side at the positions of `ticks`."""
    ticks: tuple[str, ...] = ()
    """Names of the abscissas 0, 1, …; empty if abscissas are numbers."""
    limits: tuple[float, float] | None = None
    """Both ends of the ordinate; values beyond them are cut off."""
    band: bool = False
    """Whether errors are drawn as a band around the line."""
    by_tick: bool = False
    """Whether bars are coloured by their ticks."""

    @property
    def shown(self) -> tuple[Series, ...]:
        """Series that have points."""
        return tuple(series for series in self.series if series.x)


def log_axis(values: Iterable[float]) -> dict[str, Any]:
    """Choose `y_scale` and `limits` of a panel: whole decades, and space for zero if needed.

    Args:
        values: values that the axis must show, finite and at least 0.

    Returns:
        At least one decade, from 1 to 10 if no value is positive. If a value is 0, the scale is
        symlog, and the axis begins a third of the first decade below zero.

    Examples:
        >>> log_axis([0.02, 30.0])["y_scale"], log_axis([0.0, 0.02])["limits"][0]
        ('log', -0.0033333333333333335)
    """
    shown = list(values)
    positive = [value for value in shown if value > 0]
    lowest = math.floor(math.log10(min(positive, default=1.0)))
    highest = max(math.ceil(math.log10(max(positive, default=1.0))), lowest + 1)
    low, high = 10.0**lowest, 10.0 ** (highest + 0.2)  # markers at the top are whole
    if len(positive) < len(shown):
        return {"y_scale": "symlog", "limits": (-low / 3, high)}
    return {"y_scale": "log", "limits": (low, high)}


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """Heatmap: a matrix as colours."""

    title: str
    """Title above the panel."""
    values: tuple[tuple[float, ...], ...]
    """Values, row by row; the first row is on top."""
    label: str
    """Label of the colour scale."""
    edges: tuple[int, ...] = ()
    """Rows and columns before which a new block begins."""
    names: tuple[str, ...] = ()
    """Names of the blocks, one more than edges."""
    rows: tuple[str, ...] = ()
    """Names of single rows, instead of blocks."""
    columns: tuple[str, ...] = ()
    """Names of single columns."""

    @property
    def turned(self) -> "Heatmap":
        """Transposed map, with columns as rows."""
        values = tuple(zip(*self.values, strict=True))
        return replace(self, values=values, rows=self.columns, columns=self.rows)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Figure: panels side by side under one title."""

    title: str
    """Title above all panels."""
    caption: str
    """Caption: content, number of seeds, meaning of the error bars, source of published numbers."""
    panels: tuple[Panel | Heatmap, ...]
    """Panels, left to right, row by row."""
    name: str = ""
    """File name without suffix, and anchor on a page."""
    columns: int = 0
    """Panels side by side, if there is space; 0: chosen at drawing."""
    size: tuple[float, float] = (4.6, 3.6)
    """Width and height of a panel, in inches."""
    shares: Shares = "none"
    """Shared by all panels: axes, or labels, which are then at the figure's edges."""
    marked: tuple[str, ...] = ()
    """Names that get a mark, in order; empty: the names of the series."""

    @property
    def plots(self) -> tuple[Panel, ...]:
        """Panels that contain series, not maps."""
        return tuple(panel for panel in self.panels if isinstance(panel, Panel))

    @property
    def legend(self) -> dict[str, Series]:
        """Legend: text of each entry → its first series; published numbers are last."""
        every = [series for panel in self.plots for series in panel.shown if not series.guide]
        every.sort(
            key=lambda series: (series.published, (*self.marked, series.name).index(series.name))
        )
        entries: dict[str, Series] = {}
        for entry in every:
            entries.setdefault(entry.label, entry)
        return entries

    @property
    def names(self) -> tuple[str, ...]:
        """Names that each have a mark."""
        every = (series.name for panel in self.plots for series in panel.series if not series.guide)
        return self.marked or tuple(dict.fromkeys(every))

    def for_phone(self) -> "Figure":
        """Stack the panels vertically; transpose maps with named rows, so that names are below."""
        panels = [
            panel.turned if isinstance(panel, Heatmap) and panel.columns else panel
            for panel in self.panels
        ]
        rows = max((len(panel.rows) for panel in panels if isinstance(panel, Heatmap)), default=0)
        size = (PHONE, UNDER + NAMED_ROW * max(rows, LEAST_ROWS) if rows else self.size[1])
        shares: Shares = "none" if self.shares == "none" else "labels"
        return replace(self, panels=tuple(panels), columns=1, size=size, shares=shares)
