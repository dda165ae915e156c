"""Rows gathered over seeds: nested mappings, and panels of curves."""

import pytest

from hessblocks_studies.shared.gathering import nested, panel

ROWS = [
    {"block": "a", "seed": 0, "step": 1, "value": 1.0, "error": 0.1},
    {"block": "a", "seed": 0, "step": 2, "value": 2.0, "error": 0.2},
    {"block": "b", "seed": 1, "step": 1, "value": 3.0, "error": 0.3},
]
CURVES = {"one": [(1.0, 2.0, 0.1), (2.0, 3.0, 0.2)], "none": [], "two": [(1.0, 5.0, 0.0)]}


def test_rows_become_mappings_in_mappings() -> None:
    assert nested(ROWS, "block", "step") == {"a": {1: 1.0, 2: 2.0}, "b": {1: 3.0}}
    assert nested(ROWS, "block", "seed", "step")["a"] == {0: {1: 1.0, 2: 2.0}}
    together = {("a", 0): {1: 0.1, 2: 0.2}, ("b", 1): {1: 0.3}}
    assert nested(ROWS, ("block", "seed"), "step", value="error") == together
    assert nested(ROWS, "block") == {"a": 2.0, "b": 3.0}
    assert nested([], "block", "seed") == {}


def test_a_panel_leaves_out_what_has_no_place() -> None:
    found = panel("t", "x", "y", CURVES)
    assert [one.name for one in found.series] == ["one", "two"]
    assert (found.series[0].x, found.series[0].error) == ((1.0, 2.0), (0.1, 0.2))
    every = panel("t", "x", "y", CURVES, empty=True)
    assert [one.name for one in every.series] == [*CURVES]
    assert [one.name for one in every.shown] == ["one", "two"]


@pytest.mark.parametrize(
    ("log", "scales"),
    [
        ("", ("linear", "linear")),
        ("x", ("log", "linear")),
        ("y", ("linear", "log")),
        ("xy", ("log", "log")),
    ],
)
def test_a_panel_is_logarithmic_where_it_says(log: str, scales: tuple[str, str]) -> None:
    found = panel("t", "x", "y", CURVES, log=log, line=False)
    assert (found.x_scale, found.y_scale) == scales
    assert not any(one.line for one in found.series)
