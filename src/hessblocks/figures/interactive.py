"""A figure drawn by plotly for a page: each panel as traces and layout, and samples for the legend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path

from hessblocks.figures.figure import Figure, Panel, Series
from hessblocks.figures.style import Mark, marks
from hessblocks.figures.text import number, page_text

DIGITS = 6
"""Significant digits on the page."""
INCH = 95
"""CSS pixels of height for an inch of the file's panels."""
TEXT = "#222222"
GREY = "#666666"
SVG = '<svg class="swatch" width="36" height="16" viewBox="0 0 36 16" aria-hidden="true">{}</svg>'
STRIPES = '<path d="M8 14L17 3M14 14L23 3M20 14L28 4" stroke="#666" stroke-width="1.3"/>'
COMMANDS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", 79: "Z"}
Looks = Mapping[str, Mark]


def plotly_panels(figure: Figure) -> list[dict[str, Any]]:
    """Each panel as an object with `data`, `layout` and `keys` (the series of each trace).

    Args:
        figure: of panels with series, no heatmaps.

    Returns:
        What `Plotly.newPlot` takes; names are escaped, since plotly reads markup in texts.
    """
    looks = marks(figure.names)
    return [_panel(figure, panel, looks) for panel in figure.plots]


def _panel(figure: Figure, panel: Panel, looks: Looks) -> dict[str, Any]:
    traces = [
        (series.name, trace)
        for order, series in enumerate(panel.shown)
        for trace in _traces(panel, series, order, looks)
    ]
    return {
        "data": [trace.to_plotly_json() for _, trace in traces],
        "layout": _layout(figure, panel).to_plotly_json(),
        "keys": [name for name, _ in traces],
    }


def _traces(panel: Panel, series: Series, order: int, looks: Looks) -> Iterator[Any]:
    if panel.kind == "bars":
        yield _bars(panel, series, order, looks)
        yield _values(panel, series, order)
        return
    look = looks[series.name]
    if panel.band and any(series.error):
        yield _band(panel, series, look)
    points = "lines+markers" if len(series.x) <= 40 else "lines"
    yield go.Scatter(
        **_common(series),
        mode=points if series.line else "markers",
        x=_rounded(series.x),
        y=_rounded(map(panel.place, series.y)),
        error_y=None if panel.band else _errors(panel, series, look.colour),
        line={"color": look.colour, "dash": look.plotly_dash, "width": 2},
        marker={"color": look.colour, "symbol": look.symbol, "size": 7 if series.line else 6},
    )


def _band(panel: Panel, series: Series, look: Mark) -> go.Scatter:
    x = _rounded(series.x)
    low, high = map(_rounded, panel.edges(series))
    return go.Scatter(
        mode="lines",
        x=x + x[::-1],
        y=high + low[::-1],
        fill="toself",
        fillcolor=look.colour,
        opacity=0.2,
        line={"width": 0},
        hoverinfo="skip",
    )


def _places(panel: Panel, series: Series, order: int) -> list[float]:
    """Where bars stand side by side."""
    together = len(panel.shown)
    return _rounded(x + (order - (together - 1) / 2) * 0.8 / together for x in series.x)


def _bars(panel: Panel, series: Series, order: int, looks: Looks) -> go.Bar:
    colours = [looks[panel.ticks[round(x)]].colour for x in series.x]
    pattern = {"shape": "/", "fillmode": "overlay", "fgcolor": colours, "size": 8}
    return go.Bar(
        **_common(series),
        x=_places(panel, series, order),
        y=_rounded(series.y),
        width=0.36,
        error_y=_errors(panel, series, GREY),
        marker={
            "color": "#FFFFFF" if order == 0 else colours,
            "line": {"color": colours, "width": 1.5},
            "pattern": pattern if order == 0 else None,
        },
    )


def _values(panel: Panel, series: Series, order: int) -> go.Scatter:
    """The numbers above the bars."""
    above = panel.reach(series)[1] if series.error else [0.0] * len(series.y)
    return go.Scatter(
        mode="text",
        x=_places(panel, series, order),
        y=_rounded(y + error for y, error in zip(series.y, above, strict=True)),
        text=[number(y) for y in series.y],
        textposition="top center",
        textfont={"size": 12},
        cliponaxis=False,
        hoverinfo="skip",
    )


def _errors(panel: Panel, series: Series, colour: str) -> dict[str, Any] | None:
    if not series.error:
        return None
    below, above = map(_rounded, panel.reach(series))
    look = {"type": "data", "color": colour, "thickness": 1.2, "width": 2}
    return look | {"array": above, "arrayminus": below, "symmetric": False}


def _common(series: Series) -> dict[str, Any]:
    count = len(series.x)
    names, above = series.points or [""] * count, series.error or [0.0] * count
    below = series.below or above
    return {
        "name": escape(series.name),
        "hovertext": [
            (f"{escape(name)}: " if name else "")
            + number(y)
            + (f" [{number(y - low)}, {number(y + high)}]" if low != high else "")
            + (f" ± {number(high)}" if low == high and high else "")
            for name, y, low, high in zip(names, series.y, below, above, strict=True)
        ],
        "hovertemplate": f"<b>{escape(series.name)}</b><br>%{{hovertext}}<extra></extra>",
    }


def _layout(figure: Figure, panel: Panel) -> go.Layout:
    many = len(figure.panels) > 1
    title = {"text": page_text(panel.title) if many else "", "x": 0, "xref": "paper"}
    return go.Layout(
        height=INCH * max(figure.size[1], 4.0),
        margin={"l": 64, "r": 12, "t": 34 if many else 16, "b": 56},
        title={**title, "font": {"size": 15}},
        font={"family": "system-ui, sans-serif", "size": 13, "color": TEXT},
        paper_bgcolor="#FFFFFF",
        plot_bgcolor="#FFFFFF",
        showlegend=False,
        hovermode="closest",
        barmode="overlay",
        xaxis=_axis(panel.x_label, showgrid=False) | _ticks(panel),
        yaxis=_axis(panel.y_label, gridcolor="#DDDDDD", range=panel.limits) | _log_ticks(panel),
        shapes=_guides(panel),
    )


def _axis(label: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": page_text(label), "font": {"size": 13}},
        "automargin": True,
        "zeroline": False,
        "linecolor": TEXT,
        "ticks": "outside",
        **more,
    }


def _ticks(panel: Panel) -> dict[str, Any]:
    if not panel.ticks:
        return {}
    return {
        "tickvals": list(range(len(panel.ticks))),
        "ticktext": [escape(name) for name in panel.ticks],
        "range": [-0.5, len(panel.ticks) - 0.5],
        "ticks": "",
        "ticklabeloverflow": "allow",
    }


def _log_ticks(panel: Panel) -> dict[str, Any]:
    if panel.log is None:
        return {}
    places = [10.0**exponent for exponent in panel.log.ticks]
    names = [f"10<sup>{exponent}</sup>".replace("-", "−") for exponent in panel.log.ticks]
    if panel.log.has_zero:
        places, names = [panel.log.zero, *places], ["0", *names]
    return {"type": "log", "range": panel.log.exponents, "tickvals": places, "ticktext": names}


def _guides(panel: Panel) -> list[dict[str, Any]]:
    """Lines between categories, and the line of zero."""
    upright = {"type": "line", "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    line = {"color": "#CCCCCC", "width": 1}
    edges = [place + 0.5 for place in range(len(panel.ticks) - 1)]
    guides = [{**upright, "x0": edge, "x1": edge, "line": line} for edge in edges]
    if panel.log is not None and panel.log.has_zero:
        level = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "layer": "below"}
        dashed = {"color": GREY, "width": 1, "dash": "dash"}
        guides.append({**level, "y0": panel.log.zero, "y1": panel.log.zero, "line": dashed})
    return guides


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def swatches(figure: Figure) -> list[dict[str, Any]]:
    """The legend: `key` (a series), `text` and `swatch` (a small inline SVG, safe markup) of each entry."""
    looks = marks(figure.names)
    bars = any(panel.kind == "bars" for panel in figure.plots)
    return [
        {"key": series.name, "text": text, "swatch": Markup(SVG.format(sample))}
        for place, (text, series) in enumerate(figure.legend.items())
        for sample in [_bar(place) if bars else _sample(series, looks[series.name])]
    ]


def _bar(place: int) -> str:
    fill, stripes = ("none", STRIPES) if place == 0 else (GREY, "")
    size = 'x="6" y="2.5" width="24" height="11.5"'
    return f'<rect {size} fill="{fill}" stroke="{GREY}" stroke-width="1.5"/>{stripes}'


def _sample(series: Series, look: Mark) -> str:
    """Line and marker; matplotlib's own outline of the marker, so that page and pictures agree."""
    style = MarkerStyle(look.marker)
    outline = style.get_path().transformed(style.get_transform()).iter_segments()
    pieces = (
        COMMANDS[code] + " ".join(f"{value:.3g}" for value in corners if code != Path.CLOSEPOLY)
        for corners, code in outline
    )
    marker = f'<path transform="translate(18 8) scale(9 -9)" fill="{look.colour}" d="{"".join(pieces)}"/>'
    dashes = f' stroke-dasharray="{" ".join(map(str, look.dashes))}"' if look.dashes else ""
    line = f'<path d="M0 8H36" stroke="{look.colour}" stroke-width="2"{dashes}/>'
    return (line if series.line else "") + marker
