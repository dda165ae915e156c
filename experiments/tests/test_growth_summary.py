"""Slopes of growth studies: each check over its own range, and only once that range was
measured."""

import math
from typing import Any

import numpy as np
import pytest

from hessblocks.drawing import draw
from hessblocks.figures import Figure
from hessblocks_studies.growth.growth_summary import (
    Expected,
    apart,
    curves_panel,
    growth_summary,
    with_guides,
)
from hessblocks_studies.hessian_paper import deep_linear, fig3b

SIGMAS = tuple(10 ** (place / 10 - 2) for place in range(31))
RANGES = {"low": (0.0, 0.1), "all": (0.01, 10.0)}
SLOPES = (
    Expected(group="query", part="full", slope=0, table="low"),
    Expected(group="query", part="full", slope=-2.2, table="all"),
)


def rows_of(sigmas: tuple[float, ...], **place: Any) -> list[dict[str, Any]]:
    """A curve of three seeds: flat up to σ = 0.1, then falling as σ⁻³, a bent curve."""
    noise = {0: 0.98, 1: 1.0, 2: 1.02}
    curve = {"study": "x", "layers": 1, "layer": 0, "group": "query", "part": "full", **place}
    return [
        {**curve, "sigma": s, "seed": seed, "value": noise[seed] * max(s / 0.1, 1) ** -3,
         "standard_error": 0.0}
        for s in sigmas
        for seed in noise
    ]  # fmt: skip


def checks_of(sigmas: tuple[float, ...]) -> list[Any]:
    found = growth_summary(
        rows_of(sigmas), title="t", caption="", expected=SLOPES, ranges=RANGES, panels=[]
    )
    assert list(found.tables) == list(RANGES)
    return list(found.checks)


def test_each_check_is_over_its_own_range_and_says_which() -> None:
    low, whole = checks_of(SIGMAS)
    assert low.fact.endswith("σ from 0.01 to 0.1")
    assert low.ours.startswith(("0.000", "-0.000"))
    assert low.holds is True
    assert whole.fact.endswith("σ from 0.01 to 10")
    line = np.polyfit(np.log(SIGMAS), [math.log(max(s / 0.1, 1) ** -3) for s in SIGMAS], 1)
    assert float(whole.ours.split()[0]) == pytest.approx(line[0], abs=1e-3)
    assert "no power law: the slope changes by" in whole.ours


def test_a_range_of_which_the_end_is_not_measured_decides_nothing() -> None:
    low, whole = checks_of(SIGMAS[:20])
    assert low.holds is True
    assert whole.holds is None
    low, whole = checks_of(SIGMAS[:5])
    assert (low.holds, whole.holds) == (None, None)


def test_the_six_printed_slopes_of_figure_3b_are_checked_on_both_sides() -> None:
    whole = (min(SIGMAS), max(SIGMAS))
    assert fig3b.STUDY.summarise([]).checks == []
    for group, slopes in fig3b.PRINTED.items():
        for part, slope in slopes.items():
            for off, holds in ((0.0, True), (0.3, False), (-0.3, False)):
                rows = [
                    {**row, "value": row["sigma"] ** (slope + off)}
                    for row in rows_of(SIGMAS, group=group, part=part)
                ]
                checks = fig3b.STUDY.summarise(rows).checks
                (check,) = [c for c in checks if f"to {whole[1]:g}" in c.fact]
                assert check.expected == f"{slope:g} ± 0.1 (paper, over all σ)"
                assert check.holds is holds


@pytest.mark.parametrize(("slope", "holds"), [(9, True), (18, False)])
def test_h_of_linear_layers_before_the_last_grows_as_its_functional_part(
    slope: int, holds: bool
) -> None:
    """The last layer's H has the slope of H_o, 18, and no check."""
    sigmas = tuple(0.1 * 3 ** (place / 4) for place in range(5))
    rows = [
        {**row, "value": row["value"] * row["sigma"] ** (slope, 18)[layer]}
        for layer in range(2)
        for row in rows_of(sigmas, layers=2, layer=layer)
    ]
    rows = [{**row, "value": row["value"] * max(row["sigma"] / 0.1, 1) ** 3} for row in rows]
    checks = [c for c in deep_linear.STUDY.summarise(rows).checks if "full" in c.fact]
    assert [(c.fact.partition(",")[2][:15], c.holds) for c in checks] == [
        (" layer 1 of 2, ", holds)
    ]


def test_a_guide_has_its_slope_lies_below_its_curve_and_is_in_no_legend() -> None:
    panel = curves_panel(rows_of(SIGMAS), "t", label=lambda _: "curve")
    (curve, guide) = with_guides(panel, {"curve": 6, "not drawn": 2}, (0.05, 1.0)).series
    assert guide.name == "σ⁶"
    slope = math.log(guide.y[1] / guide.y[0]) / math.log(guide.x[1] / guide.x[0])
    assert slope == pytest.approx(6)
    assert 0.05 <= guide.x[0] < guide.x[1] <= 1.0
    assert guide.y[0] < curve.y[curve.x.index(guide.x[0])]
    figure = Figure(title="t", caption="c", panels=(with_guides(panel, {"curve": 6}, (0.05, 1.0)),))
    assert (list(figure.legend), figure.names) == (["curve"], ("curve",))
    texts = [text.get_text() for text in draw(figure).axes[0].texts]
    assert texts == ["σ⁶"]
    assert not with_guides(panel, {"curve": 6}, (0.05, 0.05)).series[1].x


def test_how_far_blocks_differ_that_are_drawn_as_one() -> None:
    rows = [
        {**row, "value": row["value"] * (1, 2, 5)[layer]}
        for layer in range(3)
        for row in rows_of(SIGMAS, layers=3, layer=layer)
    ]
    assert apart(rows, "layers") == pytest.approx(5)
    assert apart(rows, "layers", "layer") == 1
    assert apart([], "layers") == 1
    zeros = [{**row, "value": 0.0} for row in rows_of(SIGMAS, layers=3)]
    assert apart(zeros, "layers") == 1
    assert apart([*rows, *({**row, "layer": 3} for row in zeros)], "layers") == math.inf
