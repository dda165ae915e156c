"""The largest over the smallest norm: which they are, and how far the ratio may be off."""

import math

import pytest

from hessblocks.statistics import ends

NORMS = {"a": (8.0, 0.8), "b": (0.0, 0.0), "c": (2.0, 0.1), "d": (4.0, 0.2)}


def test_zeros_are_left_out_and_the_error_is_of_both_ends() -> None:
    found = ends(NORMS)
    assert found is not None
    assert (found.largest, found.smallest) == ("a", "c")
    assert found.ratio == pytest.approx(4.0)
    assert found.standard_error == pytest.approx(4 * math.hypot(0.1, 0.05), rel=0.03)


def test_ends_that_stand_apart_have_the_plain_interval() -> None:
    found = ends(NORMS)
    assert found is not None
    plain = 2.02 * math.hypot(0.1, 0.05)
    assert math.log(found.high / 4) == pytest.approx(plain, rel=0.01)
    assert math.log(4 / found.low) == pytest.approx(plain, rel=0.01)


@pytest.mark.parametrize("last", [math.inf, math.nan])
def test_norms_that_are_not_finite_are_left_out(last: float) -> None:
    assert ends({**NORMS, "e": (last, 0.1)}) == ends(NORMS)


@pytest.mark.parametrize("error", [None, math.nan, math.inf])
@pytest.mark.parametrize("name", ["c", "d"])
def test_without_an_error_of_each_there_is_no_interval(name: str, error: float | None) -> None:
    """A norm in between might be an end too, so its error is needed as well."""
    found = ends({**NORMS, name: (NORMS[name][0], error)})
    assert found is not None
    assert (found.ratio, found.low, found.high, found.standard_error) == (4.0, None, None, None)


def test_there_may_be_no_end() -> None:
    assert ends({"b": (0.0, 0.0)}) is None
    assert ends({}) is None


def test_exact_norms_give_an_exact_ratio() -> None:
    found = ends({"a": (6.3, 0.0), "b": (0.7, 0.0), "c": (0.0, 0.0)})
    assert found is not None
    assert found.ratio == found.low == found.high == 6.3 / 0.7
    assert found.standard_error == 0


def test_exact_ends_stay_exact_beside_an_estimate_far_from_both() -> None:
    found = ends({"a": (100.0, 0.0), "b": (1.0, 0.0), "c": (10.0, 1.0)})
    assert found is not None
    assert found.ratio == found.low == found.high == 100.0


def test_an_estimate_near_an_exact_end_may_lie_beyond_it_but_not_pull_it_in() -> None:
    found = ends({"a": (100.0, 0.0), "b": (1.0, 0.0), "c": (90.0, 9.0)})
    assert found is not None
    assert found.ratio == pytest.approx(100.0)
    assert found.low == pytest.approx(100.0)
    assert 105 < found.high < 115


def test_one_group_is_as_even_as_can_be() -> None:
    found = ends({"a": (3.0, 0.5)})
    assert found is not None
    assert (found.ratio, found.low, found.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("error", [0.05, 0.5, 2.4])
def test_nothing_goes_below_one(error: float) -> None:
    """Not even where no norm is told from zero by its error."""
    found = ends(dict.fromkeys("abcd", (3.0, 3.0 * error)))
    assert found is not None
    assert found.low == 1.0 <= found.ratio < found.high
    assert math.isfinite(found.high)


def test_the_unit_does_not_matter() -> None:
    found, scaled = ends(NORMS), ends({n: (1e-7 * v, 1e-7 * e) for n, (v, e) in NORMS.items()})
    assert found is not None
    assert scaled is not None
    assert scaled.ratio == pytest.approx(found.ratio)
    assert scaled.high == pytest.approx(found.high)


def test_a_larger_level_gives_a_wider_interval() -> None:
    narrow, wide = ends(NORMS, 0.68), ends(NORMS, 0.99)
    assert narrow is not None
    assert wide is not None
    assert wide.low < narrow.low < narrow.ratio == wide.ratio < narrow.high < wide.high
