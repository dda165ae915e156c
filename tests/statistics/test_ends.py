"""The largest over the smallest norm: which they are, and how far the ratio may be off."""

import math

import pytest

from hessblocks.statistics import ends

NORMS = {"a": (8.0, 0.8), "b": (0.0, 0.0), "c": (2.0, 0.1), "d": (4.0, None)}


def test_zeros_are_left_out_and_the_error_is_of_both_ends() -> None:
    found = ends(NORMS)
    assert found is not None
    assert (found.largest, found.smallest, found.ratio) == ("a", "c", 4.0)
    assert found.standard_error == pytest.approx(4 * math.hypot(0.1, 0.05))


@pytest.mark.parametrize("last", [math.inf, math.nan])
def test_norms_that_are_not_finite_are_left_out(last: float) -> None:
    assert ends({**NORMS, "e": (last, 0.1)}) == ends(NORMS)


def test_an_end_without_an_error_leaves_the_ratio_without_one() -> None:
    found = ends({**NORMS, "c": (2.0, None)})
    assert found is not None
    assert found.standard_error is None


def test_there_may_be_no_end() -> None:
    assert ends({"b": (0.0, 0.0)}) is None
    assert ends({}) is None
