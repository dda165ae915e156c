"""Rank correlations against what is known of them, and against scipy's own probability."""

import itertools

import numpy as np
import pytest
from scipy import stats

from hessblocks.studies.shared.statistics import rank_correlation


@pytest.mark.parametrize(
    ("y", "value", "agrees"),
    [
        ([2.0, 4.0, 8.0, 16.0, 32.0, 64.0], 1.0, True),
        ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], -1.0, False),
        ([3.0, 1.0, 4.0, 6.0, 2.0, 5.0], 3 / 7, None),
    ],
)
def test_the_coefficient_and_its_verdict(y: list[float], value: float, agrees: bool | None) -> None:
    found = rank_correlation([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], y)
    assert found.value == pytest.approx(value)
    assert found.agrees() is agrees


def test_few_pairs_have_the_exact_probability() -> None:
    """A perfect order of five is one of 5!, and so is its reverse."""
    assert rank_correlation(range(5), range(5)).probability == pytest.approx(2 / 120)


def test_the_exact_probability_is_that_of_trying_all_orders() -> None:
    x, y = [0.3, 0.1, 0.9, 0.5, 0.7], [1.0, 2.0, 9.0, 4.0, 3.0]
    found = rank_correlation(x, y)
    every = [stats.spearmanr(order, y).statistic for order in itertools.permutations(x)]
    far = np.mean(np.abs(every) >= abs(found.value) - 1e-9)
    assert found.probability == pytest.approx(far)


def test_independent_sides_are_seldom_sure() -> None:
    generator = np.random.default_rng(0)
    sure = [
        rank_correlation(*generator.normal(size=(2, 7))).agrees() is not None for _ in range(200)
    ]
    assert 0.01 < np.mean(sure) < 0.1
