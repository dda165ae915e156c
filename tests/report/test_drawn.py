"""What is drawn is what the figure holds: error bars and bands, by both renderers."""

import math

import numpy as np
import pytest

from hessblocks.drawing.interactive import plotly_panels
from hessblocks.drawing.static import draw
from hessblocks.figures.figure import Figure, Panel, Series
from hessblocks.figures.log_scale import log_scale
from hessblocks.figures.style import MARKS

X, Y, ERROR = (0.0, 1.0), (1.5, 30.0), (2.0, 3.0)
SCALE = log_scale(Y)
BELOW = (1.5 - SCALE.limits[0], 3.0)
ENDS = tuple((y - low, y + up) for y, low, up in zip(Y, BELOW, ERROR, strict=True))


def figure(**panel: object) -> Figure:
    series = (Series(name="sas", x=X, y=Y, error=ERROR),)
    drawn = Panel(title="", x_label="x", y_label="y", series=series, log=SCALE, **panel)  # type: ignore[arg-type]
    return Figure(title="", caption="", panels=(drawn,))


def test_error_bars_of_the_page_end_where_the_error_does_or_at_the_axis() -> None:
    (trace,) = plotly_panels(figure())[0]["data"]
    assert trace["error_y"]["array"] == pytest.approx(ERROR)
    assert trace["error_y"]["arrayminus"] == pytest.approx(BELOW)


def test_error_bars_of_the_picture_are_those_of_the_page() -> None:
    axis = draw(figure()).axes[0]
    segments = axis.containers[0].lines[2][0].get_segments()
    expected = [[(x, low), (x, high)] for x, (low, high) in zip(X, ENDS, strict=True)]
    assert np.allclose(segments, expected)


def test_a_point_of_one_seed_has_no_bar_and_leaves_the_others_theirs() -> None:
    some = Series(name="sas", x=X, y=Y, error=(math.nan, 3.0))
    none = Series(name="sas", x=X, y=Y, error=(math.nan, math.nan))
    assert (some.error, none.error) == ((0.0, 3.0), ())


def bars(**panel: object) -> Figure:
    """Three series of two places; the second error of each is not known."""
    names, error = ("sas", "sas-p", "pre-ln"), (0.5, 0.0)
    series = tuple(Series(name=name, x=X, y=(1.0, 2.0), error=error) for name in names)
    drawn = Panel(
        title="", x_label="", y_label="y", series=series, kind="bars", ticks=("a", "b"), **panel
    )  # type: ignore[arg-type]
    return Figure(title="", caption="", panels=(drawn,))


def test_bars_of_the_page_have_the_colours_of_their_series_and_do_not_overlap() -> None:
    traces = [trace for trace in plotly_panels(bars())[0]["data"] if trace["type"] == "bar"]
    assert [trace["marker"]["line"]["color"] for trace in traces] == [
        [MARKS[name].colour] * 2 for name in ("sas", "sas-p", "pre-ln")
    ]
    left, right = (traces[place]["x"][0] for place in (0, 1))
    assert traces[0]["width"] <= right - left


def test_an_error_that_is_not_known_leaves_no_bar_and_no_cap() -> None:
    trace = plotly_panels(bars())[0]["data"][0]
    assert list(trace["error_y"]["array"]) == [0.5, None]
    axis = draw(bars()).axes[0]
    caps = [float(y) for line in axis.lines for y in np.atleast_1d(line.get_ydata())]
    assert sorted(y for y in caps if math.isfinite(y)) == [0.5] * 3 + [1.5] * 3


@pytest.mark.parametrize("renderer", ["page", "picture"])
def test_a_band_reaches_as_far_as_its_errors(renderer: str) -> None:
    made = figure(band=True)
    if renderer == "page":
        band = plotly_panels(made)[0]["data"][0]
        places = set(zip(band["x"], band["y"], strict=True))
    else:
        (path,) = draw(made).axes[0].collections[0].get_paths()
        places = {(float(x), float(y)) for x, y in path.vertices}
    ends = {(x, end) for x, both in zip(X, ENDS, strict=True) for end in both}
    assert {(x, float(f"{y:.5g}")) for x, y in places} == {(x, float(f"{y:.5g}")) for x, y in ends}
