"""A figure drawn by plotly for a page: each panel as traces and layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import plotly.graph_objects as go

from hessblocks.figures import Figure, Mark, Panel, Series, marks, number, page_text

DIGITS = 6
"""Significant digits on the page."""
INCH = 95
"""CSS pixels of height for an inch of the file's panels."""
TEXT = "#222222"
GREY = "#666666"
AXIS = {
    "automargin": True,
    "zeroline": False,
    "linecolor": TEXT,
    "ticks": "outside",
    "title_font_size": 13,
}
"""Of both axes."""
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
    drawn = go.Figure([trace for _, trace in traces])
    _lay_out(drawn, figure, panel)
    return {**drawn.to_plotly_json(), "keys": [name for name, _ in traces]}


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
    names = [panel.ticks[round(x)] if panel.by_tick else series.name for x in series.x]
    colours = [looks[name].colour for name in names]
    pattern = {"shape": "/", "fillmode": "overlay", "fgcolor": colours, "size": 8}
    return go.Bar(
        **_common(series),
        x=_places(panel, series, order),
        y=_rounded(series.y),
        width=0.72 / len(panel.shown),
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
    lengths = {"array": above, "arrayminus": below}
    known = {name: [length or None for length in side] for name, side in lengths.items()}
    return look | known | {"symmetric": False}


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


def _lay_out(drawn: go.Figure, figure: Figure, panel: Panel) -> None:
    many = len(figure.panels) > 1
    title = {"text": page_text(panel.title) if many else "", "x": 0, "xref": "paper"}
    drawn.update_layout(
        template=None,
        height=INCH * max(figure.size[1], 4.0),
        margin={"l": 64, "r": 12, "t": 34 if many else 16, "b": 56},
        title={**title, "font": {"size": 15}},
        font={"family": "system-ui, sans-serif", "size": 13, "color": TEXT},
        paper_bgcolor="#FFFFFF",
        plot_bgcolor="#FFFFFF",
        showlegend=False,
        hovermode="closest",
        barmode="overlay",
    )
    drawn.update_xaxes(AXIS, title_text=page_text(panel.x_label), showgrid=False)
    drawn.update_yaxes(AXIS, title_text=page_text(panel.y_label), gridcolor="#DDDDDD")
    drawn.update_yaxes(range=panel.limits)
    if panel.ticks:
        _name_ticks(drawn, [escape(name) for name in panel.ticks])
    if panel.log:
        places, texts = panel.log.labelled("10<sup>{}</sup>")
        texts = [text.replace("-", "−") for text in texts]
        drawn.update_yaxes(type="log", range=panel.log.exponents, tickvals=places, ticktext=texts)
        if panel.log.has_zero:
            dashed = {"color": GREY, "width": 1, "dash": "dash"}
            drawn.add_hline(panel.log.zero, layer="below", line=dashed)


def _name_ticks(drawn: go.Figure, names: list[str]) -> None:
    """Names of categories, and lines between these."""
    places, ends = list(range(len(names))), (-0.5, len(names) - 0.5)
    drawn.update_xaxes(tickvals=places, ticktext=names, range=ends, ticks="")
    drawn.update_xaxes(ticklabeloverflow="allow")
    for edge in places[:-1]:
        drawn.add_vline(edge + 0.5, layer="below", line={"color": "#CCCCCC", "width": 1})


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
