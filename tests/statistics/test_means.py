"""Means and errors against the standard library, and what is not finite."""

import math
import statistics

import pytest

from hessblocks.statistics import average, mean_and_error, variance

VALUES = [3.0, 4.5, 4.0, 7.25]


def test_mean_and_error_are_those_of_the_standard_library() -> None:
    mean, error = mean_and_error(VALUES)
    assert mean == pytest.approx(statistics.mean(VALUES))
    assert error == pytest.approx(statistics.stdev(VALUES) / 2)
    assert variance(VALUES) == pytest.approx(statistics.variance(VALUES))


@pytest.mark.parametrize(
    ("values", "mean"), [([2.5], 2.5), ([math.inf, 1.0], math.inf), ([math.nan, 1.0], math.nan)]
)
def test_an_error_that_cannot_be_known_is_not_a_number(values: list[float], mean: float) -> None:
    found, error = mean_and_error(values)
    assert found == pytest.approx(mean, nan_ok=True)
    assert math.isnan(error)


def test_an_average_leaves_out_what_is_not_finite() -> None:
    found = average([*VALUES, math.inf, math.nan], own_error=9.0)
    assert found is not None
    assert (found.value, found.seeds) == (pytest.approx(statistics.mean(VALUES)), 4)
    assert found.standard_error == pytest.approx(statistics.stdev(VALUES) / 2)
    assert average([math.nan]) is None


def test_one_seed_has_the_error_of_its_own_measurement() -> None:
    found = average([2.5, math.nan], own_error=0.1)
    assert found is not None
    assert (found.value, found.standard_error, found.seeds) == (2.5, 0.1, 1)
