"""Interactive figures: each panel of a drawing as plotly's traces and layout, in plain JSON."""

from __future__ import annotations

from html import escape
from typing import Any

from hessblocks.figures.drawings import Drawing, DrawnPanel, DrawnSeries, Point, band
from hessblocks.figures.log_scale import LogScale
from hessblocks.figures.style import Mark
from hessblocks.figures.text import number

DIGITS = 6
"""Significant digits on the page."""
TEXT = "#222222"
GRID = "#DDDDDD"
HEIGHTS = {"lines": 380, "points": 390, "bars": 400}
"""Height of a panel, in CSS pixels."""


def plotly_panels(drawing: Drawing, looks: dict[str, Mark]) -> list[dict[str, Any]]:
    """Each panel as an object with `data`, `layout` and `keys` (the legend entry of each trace).

    Args:
        drawing: what to draw.
        looks: the mark of each preset.

    Returns:
        What `Plotly.newPlot` takes; names are escaped, since plotly reads markup in texts.
    """
    return [_panel(drawing, panel, looks) for panel in drawing.panels]


def _panel(drawing: Drawing, panel: DrawnPanel, looks: dict[str, Mark]) -> dict[str, Any]:
    traces, keys = [], []
    for order, series in enumerate(panel.series):
        for trace in _traces(drawing, series, order, looks):
            traces.append(trace)
            keys.append(series.key)
    return {"data": traces, "layout": _layout(drawing, panel), "keys": keys}


def _traces(
    drawing: Drawing, series: DrawnSeries, order: int, looks: dict[str, Mark]
) -> list[dict[str, Any]]:
    if drawing.kind == "lines":
        look = looks[series.key]
        return [*_band(series, look, drawing.log), _line(series, look, drawing.log)]
    if not series.points:
        return []
    assert drawing.log is not None, "points and bars have a logarithmic axis"
    if drawing.kind == "points":
        return [_points(series, looks[series.key], drawing.log)]
    return [_bars(series, order, drawing, drawing.log, looks), _values(series)]


def _line(series: DrawnSeries, look: Mark, scale: LogScale | None) -> dict[str, Any]:
    return {
        **_common(series),
        "type": "scatter",
        "mode": "lines+markers" if len(series.points) <= 40 else "lines",
        "x": [_rounded(point.x) for point in series.points],
        "y": [_rounded(scale.place(point.y) if scale else point.y) for point in series.points],
        "line": {"color": look.colour, "dash": look.plotly_dash, "width": 2},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 7},
    }


def _band(series: DrawnSeries, look: Mark, scale: LogScale | None) -> list[dict[str, Any]]:
    if not any(point.error for point in series.points):
        return []
    x = [_rounded(point.x) for point in series.points]
    below, above = band(series, scale)
    low, high = [_rounded(value) for value in below], [_rounded(value) for value in above]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": x + x[::-1],
            "y": high + low[::-1],
            "fill": "toself",
            "fillcolor": look.colour,
            "opacity": 0.2,
            "line": {"width": 0},
            "hoverinfo": "skip",
        }
    ]


def _points(series: DrawnSeries, look: Mark, scale: LogScale) -> dict[str, Any]:
    return {
        **_common(series),
        "type": "scatter",
        "mode": "markers",
        "x": [_rounded(point.x) for point in series.points],
        "y": [_rounded(scale.place(point.y)) for point in series.points],
        "error_y": _errors(series, scale, look.colour),
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 6},
    }


def _bars(
    series: DrawnSeries, order: int, drawing: Drawing, scale: LogScale, looks: dict[str, Mark]
) -> dict[str, Any]:
    colours = [looks[drawing.categories[round(point.x)]].colour for point in series.points]
    return {
        **_common(series),
        "type": "bar",
        "x": [_rounded(point.x) for point in series.points],
        "y": [_rounded(point.y) for point in series.points],
        "width": 0.36,
        "error_y": _errors(series, scale, "#666666"),
        "marker": {
            "color": ["#FFFFFF"] * len(colours) if order == 0 else colours,
            "line": {"color": colours, "width": 1.5},
            "pattern": {
                "shape": "/" if order == 0 else "",
                "fillmode": "overlay",
                "fgcolor": colours,
                "size": 8,
            },
        },
    }


def _values(series: DrawnSeries) -> dict[str, Any]:
    """The numbers above the bars."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": [_rounded(point.x) for point in series.points],
        "y": [_rounded(point.y + point.error) for point in series.points],
        "text": [number(point.y) for point in series.points],
        "textposition": "top center",
        "textfont": {"size": 12},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }


def _errors(series: DrawnSeries, scale: LogScale, colour: str) -> dict[str, Any]:
    reach = [scale.reach(point.y, point.error) for point in series.points]
    below, above = ([_rounded(length) for length in side] for side in zip(*reach, strict=True))
    return {
        "type": "data",
        "symmetric": below == above,
        "array": above,
        **({} if below == above else {"arrayminus": below}),
        "color": colour,
        "thickness": 1.2,
        "width": 2,
    }


def _common(series: DrawnSeries) -> dict[str, Any]:
    return {
        "name": escape(series.key),
        "hovertext": [_hover(point) for point in series.points],
        "hovertemplate": f"<b>{escape(series.key)}</b><br>%{{hovertext}}<extra></extra>",
    }


def _hover(point: Point) -> str:
    error = f" ± {number(point.error)}" if point.error else ""
    name = f"{escape(point.name)}: " if point.name else ""
    return f"{name}{number(point.y)}{error}"


def _layout(drawing: Drawing, panel: DrawnPanel) -> dict[str, Any]:
    many = len(drawing.panels) > 1
    return {
        "height": HEIGHTS[drawing.kind],
        "margin": {"l": 64, "r": 12, "t": 34 if many else 16, "b": 56},
        "title": {
            "text": panel.title.html if many else "",
            "x": 0,
            "xref": "paper",
            "font": {"size": 15},
        },
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": TEXT},
        "paper_bgcolor": "#FFFFFF",
        "plot_bgcolor": "#FFFFFF",
        "showlegend": False,
        "hovermode": "closest",
        "barmode": "overlay",
        "xaxis": _horizontal(drawing),
        "yaxis": _vertical(drawing),
        "shapes": _guides(drawing),
    }


def _horizontal(drawing: Drawing) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "title": {"text": drawing.x.html, "font": {"size": 13}},
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "linecolor": TEXT,
        "ticks": "outside",
    }
    if drawing.categories:
        axis |= {
            "tickvals": list(range(len(drawing.categories))),
            "ticktext": [escape(name) for name in drawing.categories],
            "range": [-0.5, len(drawing.categories) - 0.5],
            "ticks": "",
            "ticklabeloverflow": "allow",
        }
    return axis


def _vertical(drawing: Drawing) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "title": {"text": drawing.y.html, "font": {"size": 13}},
        "automargin": True,
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": TEXT,
        "ticks": "outside",
    }
    if drawing.limits is not None:
        axis["range"] = [_rounded(limit) for limit in drawing.limits]
    if drawing.log is not None:
        axis |= _log_ticks(drawing.log)
    return axis


def _log_ticks(scale: LogScale) -> dict[str, Any]:
    places = [10.0**exponent for exponent in scale.ticks]
    names = [f"10<sup>{exponent}</sup>".replace("-", "−") for exponent in scale.ticks]
    if scale.has_zero:
        places, names = [scale.zero, *places], ["0", *names]
    low, high = scale.exponents
    return {"type": "log", "range": [low, high], "tickvals": places, "ticktext": names}


def _guides(drawing: Drawing) -> list[dict[str, Any]]:
    """Lines between categories, and the line of zero."""
    line = {"color": "#CCCCCC", "width": 1}
    guides = [
        {"type": "line", "x0": edge + 0.5, "x1": edge + 0.5, "y0": 0, "y1": 1, "yref": "paper"}
        | {"line": line, "layer": "below"}
        for edge in range(len(drawing.categories) - 1)
    ]
    if drawing.log is not None and drawing.log.has_zero:
        zero = drawing.log.zero
        guides.append(
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": zero, "y1": zero}
            | {"line": {"color": "#666666", "width": 1, "dash": "dash"}, "layer": "below"}
        )
    return guides


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
