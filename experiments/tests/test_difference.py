"""Our curves against published ones: the right pairs, the right distances."""

from dataclasses import replace

import pytest

from hessblocks.figures import Figure, Panel, Series
from hessblocks_studies.gallery.against_published import Difference, differences


def series(
    name: str,
    x: tuple[float, ...],
    y: tuple[float, ...],
    *,
    error: tuple[float, ...],
    published: bool,
) -> Series:
    return Series(name=name, x=x, y=y, error=error, published=published)


def figure(*found: Series, title: str = "") -> Figure:
    panel = Panel(title=title, x_label="x", y_label="y", series=found)
    return Figure(title="", caption="", panels=(panel,))


OURS = series("query", (0.1, 0.2, 0.4), (1.0, 2.2, 9.0), error=(0.1, 0.1, 0.1), published=False)
THEIRS = series("query", (0.1, 0.2, 0.3), (1.0, 2.0, 7.0), error=(0.0, 0.0, 0.0), published=True)


def test_common_abscissas_alone_are_compared() -> None:
    (found,) = differences(figure(OURS, THEIRS, title="H"))
    assert found == Difference(
        name="query (H)", points=2, typical=pytest.approx(0.05), largest=pytest.approx(0.1), near=2
    )
    assert found.cells == ("query (H)", "5.0%", "10.0%", "2 of 2")


@pytest.mark.parametrize(
    ("ours", "theirs", "near"), [(0.06, 0.0, 1), (0.07, 0.0, 2), (0.04, 0.06, 2), (0.04, 0.05, 1)]
)
def test_near_means_three_joint_standard_errors(ours: float, theirs: float, near: int) -> None:
    own = replace(OURS, error=(ours,) * 3)
    other = replace(THEIRS, error=(theirs,) * 3)
    assert differences(figure(own, other))[0].near == near


def test_curves_without_error_bars_are_not_called_near() -> None:
    (found,) = differences(figure(replace(OURS, error=()), replace(THEIRS, error=())))
    assert found.near is None
    assert found.cells[3] == "no error bars"


def test_nothing_to_compare_gives_no_row() -> None:
    far = replace(THEIRS, x=(5.0, 6.0, 7.0))
    zero = replace(THEIRS, y=(0.0, 0.0, 0.0))
    other = replace(THEIRS, name="value")
    for published in (far, zero, other):
        assert differences(figure(OURS, published)) == []
    assert differences(figure(OURS)) == []


def test_abscissas_that_differ_by_rounding_are_the_same() -> None:
    moved = replace(THEIRS, x=(0.1 * (1 + 5e-4), 0.2, 0.3))
    assert differences(figure(OURS, moved))[0].points == 2
