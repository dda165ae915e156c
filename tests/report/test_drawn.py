"""What is drawn is what the figure holds: error bars, bands, a place for zero; on a page without
its words."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Drawn
from matplotlib.layout_engine import ConstrainedLayoutEngine

from hessblocks.drawing import draw, page_picture, static, write_picture
from hessblocks.drawing.pictures import SHEET
from hessblocks.figures.figure import Figure, Heatmap, Panel, Series, log_axis
from hessblocks.figures.style import MARKS

X, Y, ERROR = (0.0, 1.0), (1.5, 30.0), (2.0, 3.0)
SCALE = log_axis(Y)
ENDS = tuple((y - error, y + error) for y, error in zip(Y, ERROR, strict=True))


def figure(**panel: object) -> Figure:
    series = (Series(name="sas", x=X, y=Y, error=ERROR),)
    drawn = Panel(title="", x_label="x", y_label="y", series=series, **SCALE, **panel)  # type: ignore[arg-type]
    return Figure(title="", caption="", panels=(drawn,))


def test_error_bars_end_where_the_error_does_and_the_axis_above_zero() -> None:
    axis = draw(figure()).axes[0]
    assert (axis.get_yscale(), axis.get_ylim()[0]) == ("log", 1.0)
    segments = axis.containers[0].lines[2][0].get_segments()
    expected = [[(x, low), (x, high)] for x, (low, high) in zip(X, ENDS, strict=True)]
    assert np.allclose(segments, expected)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((7e-9, 4e-5), {"1e-05", "4e-05"}),
        ((1000.0001, 1000.0002), {"1000.0001", "1000.0002"}),
        ((0.25, 1.0), {"0.4", "1.0"}),
    ],
)
def test_no_number_stands_in_the_title(values: tuple[float, float], labels: set[str]) -> None:
    panel = figure().panels[0]
    series = (Series(name="sas", x=X, y=values),)
    shown = replace(panel, series=series, y_scale="linear", limits=None)
    drawn = draw(replace(figure(), panels=(shown,)))
    drawn.canvas.draw()
    axis = drawn.axes[0].yaxis
    assert axis.get_offset_text().get_text() == ""
    assert labels <= {label.get_text() for label in axis.get_ticklabels()}


def test_a_legend_of_long_names_fits_the_figure() -> None:
    names = [f"a block of {number} layers without skips, values and norms" for number in range(9)]
    series = tuple(Series(name=name, x=X, y=Y) for name in (*names, "sas"))
    drawn = draw(replace(figure(), panels=(replace(figure().panels[0], series=series),)))
    drawn.canvas.draw()
    (legend,) = drawn.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= drawn.bbox.width
    assert len(legend.get_texts()) == 10


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


def test_bars_have_the_colours_of_their_series_and_do_not_overlap() -> None:
    patches = draw(bars()).axes[0].patches
    drawn = [to_hex(patch.get_facecolor()).upper() for patch in patches]
    assert drawn == [MARKS[name].colour for name in ("sas", "sas-p", "pre-ln") for _ in X]
    left, _, right, *_ = patches  # two places of the first series, then the second one's first
    assert left.get_x() + left.get_width() <= right.get_x() + 1e-9


def test_an_error_that_is_not_known_leaves_no_bar_and_no_cap() -> None:
    axis = draw(bars()).axes[0]
    caps = [float(y) for line in axis.lines for y in np.atleast_1d(line.get_ydata())]
    assert sorted(y for y in caps if math.isfinite(y)) == [0.5] * 3 + [1.5] * 3


def test_a_band_reaches_as_far_as_its_errors() -> None:
    (path,) = draw(figure(band=True)).axes[0].collections[0].get_paths()
    places = {(float(x), float(y)) for x, y in path.vertices}
    ends = {(x, end) for x, both in zip(X, ENDS, strict=True) for end in both}
    assert {(x, float(f"{y:.5g}")) for x, y in places} == {(x, float(f"{y:.5g}")) for x, y in ends}


@pytest.mark.parametrize("values", [(0.0, 3.0), (0.0, 0.0), (2e-9, 0.0)])
def test_a_zero_stands_on_a_line_named_zero(values: tuple[float, float]) -> None:
    series = (Series(name="sas", x=X, y=values),)
    panel = Panel(title="", x_label="", y_label="", series=series, **log_axis(values))
    axis = draw(Figure(title="", caption="", panels=(panel,))).axes[0]
    low, high = axis.get_ylim()
    seen = [place for place in axis.get_yticks() if low <= place <= high]
    names = axis.yaxis.get_major_formatter().format_ticks(seen)
    assert "0" in names[0]
    assert seen[0] == 0 > low
    place = axis.transData.transform
    zero, decade, second = (place((0, y))[1] for y in (0.0, -3 * low, -30 * low))
    assert decade - zero == pytest.approx(second - decade, rel=0.2), "a decade of room"


def test_a_picture_of_a_page_has_neither_title_nor_caption_and_no_date(tmp_path: Path) -> None:
    made = replace(figure(), title="A title", caption="What is drawn here.")
    drawn = draw(made)
    write_picture(drawn, tmp_path, "one")
    shown = page_picture(drawn).decode()
    filed = (tmp_path / "one.svg").read_text()
    for words in ("A title", "What is drawn here."):
        assert words in filed
        assert words not in shown
    assert "<dc:date>" not in shown
    assert height(shown) < height(filed) - 40, "their room is gone too"


def test_a_figure_is_settled_once_and_a_picture_without_words_is_that_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[type] = []
    for one, name in ((ConstrainedLayoutEngine, "execute"), (Drawn, "draw")):
        real = getattr(one, name)
        monkeypatch.setattr(one, name, lambda *a, one=one, real=real: done.append(one) or real(*a))
    drawn = draw(figure())
    write_picture(drawn, tmp_path, "one")
    shown = page_picture(drawn)
    assert done == [Drawn, ConstrainedLayoutEngine, Drawn, Drawn], "a png, a svg, the page's"
    pictures = (shown, (tmp_path / "one.svg").read_bytes())
    assert len({re.sub(SHEET, b"", picture, count=1) for picture in pictures}) == 1
    phone = draw(figure().for_phone(), 0)
    page_picture(phone)
    assert done[4:] == [ConstrainedLayoutEngine, Drawn]


def test_a_map_is_as_fine_on_a_page_as_in_its_file(tmp_path: Path) -> None:
    drawn = draw(Figure(title="", caption="", panels=(Heatmap(title="", label="", values=(X, Y)),)))
    write_picture(drawn, tmp_path, "one")
    pictures = (page_picture(drawn), (tmp_path / "one.svg").read_bytes())
    on_page, filed = (re.findall(rb'base64,([^"]+)"', picture) for picture in pictures)
    assert on_page == filed != []


def test_numbers_stand_above_bars_where_there_is_room_for_them() -> None:
    (panel,) = bars().plots
    named = tuple(replace(one, numbers=("10,000", "2")) for one in panel.series)
    shown = replace(bars(), panels=(replace(panel, series=named),))
    assert [text.get_text() for text in draw(shown).axes[0].texts] == ["10,000", "2"] * 3
    assert not draw(shown.for_phone(), 0).axes[0].texts
    short = tuple(replace(one, numbers=("1", "2")) for one in named[1:])  # would fit alone
    shown = replace(bars(), panels=(replace(panel, series=(named[0], *short)),))
    assert not draw(shown.for_phone(), 0).axes[0].texts


def test_a_label_that_is_set_on_a_drawn_figure_stands_below_its_axis() -> None:
    axis = draw(replace(bars(), shares="both")).axes[0]
    axis.set_xlabel("my own")
    axis.figure.draw_without_rendering()
    assert axis.xaxis.label.get_window_extent().y1 < axis.bbox.y0


def height(svg: str) -> float:
    (found,) = re.findall(r'<svg [^>]*height="([0-9.]+)pt"', svg.replace("\n", " "))
    return float(found)


def test_names_that_differ_at_their_end_are_cut_inside() -> None:
    assert static._cut(["query", "sas, no MLP skip"], 12) == ["query", "sas, no MLP…"]
    assert static._cut(["sas, slope 0.2", "sas, slope 0.5"], 8) == ["sas… 0.2", "sas… 0.5"]
    assert static._cut(["a b1 and c", "a b2 and c"], 4) == ["a b1 and c", "a b2 and c"]


def test_a_bar_that_all_but_reaches_zero_does_not_take_the_axis() -> None:
    series = Series(name="a", x=X, y=(1e-3, 10.0), error=(1e-3 * (1 - 1e-12), 1.0))
    panel = Panel(title="", x_label="", y_label="", series=(series,), y_scale="log")
    axis = draw(Figure(title="", caption="", panels=(panel,))).axes[0]
    assert axis.get_ylim()[0] >= 1e-4
    below = replace(panel, series=(replace(series, y=(1e-9, 1e-8), error=(1e-10, 1e-10)),))
    both = Figure(title="", caption="", panels=(panel, below), shares="both")
    assert all(axis.get_ylim()[0] < 1e-9 for axis in draw(both).axes)
