"""Slopes over seeds against simulated power laws, straight, bent and flat."""

import math

import numpy as np
import pytest
from scipy import stats

from hessblocks_studies.growth.fits import Growth, fit_growth

SIGMA = np.repeat(np.logspace(-2, -1, 7), 5)
SEED = np.tile(np.arange(5), 7)


def simulated(slope: float, noise: float, seed: int, bend: float = 0.0) -> np.ndarray:
    """Five seeds with levels and slopes of their own."""
    generator = np.random.default_rng(seed)
    x = np.log(SIGMA)
    middle = (x.max() + x.min()) / 2
    curve = slope * x + bend / (2 * np.log(10)) * (x - middle) ** 2
    own = generator.normal(0, noise, 5)[SEED] * x
    return np.exp(curve + own + generator.normal(0, 2, 5)[SEED])


def fit(values: np.ndarray) -> Growth:
    found = fit_growth(SIGMA.tolist(), values.tolist(), SEED.tolist())
    assert found is not None
    return found


def test_the_slope_is_the_mean_of_the_regressions_of_the_seeds() -> None:
    values = simulated(3, 0.2, seed=1)
    found = fit(values)
    theirs = [
        stats.linregress(np.log(SIGMA[s == SEED]), np.log(values[s == SEED])).slope
        for s in range(5)
    ]
    assert found.slope == pytest.approx(np.mean(theirs))
    assert found.standard_error == pytest.approx(stats.sem(theirs))
    reach = stats.sem(theirs) * stats.t.ppf(0.975, 4)
    assert (found.low, found.high) == pytest.approx((found.slope - reach, found.slope + reach))


def test_the_interval_covers_the_true_slope_as_often_as_it_says() -> None:
    hits = [
        found.low < 5 < found.high
        for found in (fit(simulated(5, 0.3, seed)) for seed in range(300))
    ]
    assert 0.92 < np.mean(hits) < 0.98


def test_a_level_of_a_seed_says_nothing_about_its_slope() -> None:
    found = fit(simulated(5.0, 0.0, seed=0))
    assert found.slope == pytest.approx(5, abs=1e-9)
    assert found.standard_error < 1e-9
    assert found.flag == ""


def test_straight_lines_are_hardly_ever_flagged_and_bent_ones_are() -> None:
    straight = [fit(simulated(5, 0.2, seed)).flag for seed in range(100)]
    assert sum(bool(flag) for flag in straight) <= 3
    bent = fit(simulated(5, 0.05, seed=0, bend=1.0))
    assert bent.bend == pytest.approx(1.0, abs=0.3)
    assert "slope changes by" in bent.flag


def test_zeros_are_left_out_and_too_few_sizes_give_no_fit() -> None:
    values = simulated(2, 0.1, seed=0)
    values[:5] = 0
    found = fit(values)
    assert (found.measurements, found.seeds) == (30, 5)
    assert found.smallest > 0.011
    values[:25] = 0
    assert fit_growth(SIGMA.tolist(), values.tolist(), SEED.tolist()) is None


def test_one_seed_has_no_interval_and_decides_nothing() -> None:
    found = fit_growth([1, 2, 4], [1, 2.4, 4], [0, 0, 0])
    assert found is not None
    assert found.text == "1.000 (1 seed)"
    assert math.isnan(found.low)
    assert found.over_seeds.within(0.1, around=1) is None
