"""A figure as data: what a study wants shown, for `hessblocks.report` to draw from the file."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Scaling = Literal["linear", "log"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One row of points."""

    name: str
    """In the legend; series of one name share a colour in all panels."""
    x: tuple[float, ...]
    """Abscissas."""
    y: tuple[float, ...]
    """Ordinates."""
    error: tuple[float, ...] = ()
    """Half length of each error bar; empty for none, and where one is not known."""
    published: bool = False
    """Whether these are the paper's numbers, drawn hollow."""
    line: bool = True
    """Whether the points are joined."""

    def __post_init__(self) -> None:
        """Leave out error bars of which one is not a number: it is of a single seed."""
        if any(map(math.isnan, self.error)):
            object.__setattr__(self, "error", ())


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    """Above it."""
    x_label: str
    """In words, with symbol and unit."""
    y_label: str
    """In words, with symbol and unit."""
    series: tuple[Series, ...]
    """What is drawn."""
    x_scale: Scaling = "linear"
    """Of the abscissa."""
    y_scale: Scaling = "linear"
    """Of the ordinate."""
    kind: Literal["lines", "bars"] = "lines"
    """Points and lines, or bars side by side at the places of `ticks`."""
    ticks: tuple[str, ...] = ()
    """Names of the abscissas 0, 1, …; empty where they are numbers."""


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """A matrix as colours."""

    title: str
    """Above it."""
    values: tuple[tuple[float, ...], ...]
    """Row by row, the first on top."""
    label: str
    """Of the colours."""
    edges: tuple[int, ...] = ()
    """Rows and columns before which a new block begins."""
    names: tuple[str, ...] = ()
    """Of the blocks, one more than edges."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Panels side by side under one title."""

    title: str
    """Above all."""
    caption: str
    """What is shown, how many seeds, what the bars mean, where published numbers come from."""
    panels: tuple[Panel | Heatmap, ...]
    """Left to right."""

    def to_dict(self) -> dict[str, Any]:
        """The figure as plain data."""
        return asdict(self)
