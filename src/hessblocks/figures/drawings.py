"""What a figure shows, before anybody draws it: the static and the interactive one share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hessblocks.figures.log_scale import LogScale


@dataclass(frozen=True, kw_only=True)
class Label:
    """A text with mathematics in it, for matplotlib and for the page."""

    math: str
    """With matplotlib's $…$."""
    html: str
    """With <sub> and <sup>."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value with its error."""

    x: float
    """Position on the horizontal axis."""
    y: float
    """The value."""
    error: float
    """Standard error of the value; 0 where there is none."""
    name: str
    """What the point is, such as a group's name; may be empty."""


@dataclass(frozen=True, kw_only=True)
class DrawnSeries:
    """The points that share one legend entry."""

    key: str
    """The legend entry: a preset, or a moment of training."""
    points: tuple[Point, ...]
    """In the order in which they are joined."""


@dataclass(frozen=True, kw_only=True)
class DrawnPanel:
    """One pair of axes."""

    title: Label
    """What differs from the other panels."""
    series: tuple[DrawnSeries, ...]
    """In the order of the legend."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure's content."""

    name: str
    """File name without suffix."""
    title: str
    """Heading on the page."""
    kind: Literal["lines", "points", "bars"]
    """Joined points; points in categories; bars."""
    panels: tuple[DrawnPanel, ...]
    """Row by row."""
    columns: int
    """Panels side by side where there is room."""
    x: Label
    """Horizontal axis: words, symbol, unit."""
    y: Label
    """Vertical axis: words, symbol, unit."""
    caption: Label
    """What is shown, how many tokens, seeds and probes, what a bar or band is."""
    legend: tuple[tuple[str, str], ...]
    """(key, text) of each entry."""
    categories: tuple[str, ...] = ()
    """Names at 0, 1, 2, … on the horizontal axis; empty for a numeric axis."""
    log: LogScale | None = None
    """The logarithmic vertical axis; None for a linear one."""
    own_scales: bool = False
    """Whether each panel has a vertical axis of its own."""
    limits: tuple[float, float] | None = None
    """Both ends of a linear vertical axis; values beyond are cut off."""


def band(series: DrawnSeries, scale: LogScale | None) -> tuple[list[float], list[float]]:
    """Lower and upper edge of the band around a curve, within the axis."""
    if scale is None:
        reach = [(point.error, point.error) for point in series.points]
        middle = [point.y for point in series.points]
    else:
        reach = [scale.reach(point.y, point.error) for point in series.points]
        middle = [scale.place(point.y) for point in series.points]
    below = [value - own for value, (own, _) in zip(middle, reach, strict=True)]
    return below, [value + own for value, (_, own) in zip(middle, reach, strict=True)]
