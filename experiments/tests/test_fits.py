"""Slopes against scipy and against simulated power laws, straight, bent and flat."""

import numpy as np
import pytest
from scipy import stats

from hessblocks_studies.growth.fits import fit_growth

SIGMA = np.repeat(np.logspace(-2, -1, 7), 5)


def simulated(slope: float, noise: float, seed: int, bend: float = 0.0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = np.log(SIGMA)
    middle = (x.max() + x.min()) / 2
    curve = slope * x + bend / (2 * np.log(10)) * (x - middle) ** 2
    return np.exp(curve + generator.normal(0, noise, SIGMA.size))


def fit(values: np.ndarray, errors: list[float | None] | None = None):
    found = fit_growth(SIGMA.tolist(), values.tolist(), errors or [None] * SIGMA.size)
    assert found is not None
    return found


def test_one_measurement_a_sigma_is_scipys_regression() -> None:
    sigma, values = SIGMA[::5], simulated(3, 0.2, seed=1)[::5]
    found = fit_growth(sigma.tolist(), values.tolist(), [None] * 7)
    theirs = stats.linregress(np.log(sigma), np.log(values))
    assert found is not None
    assert found.slope == pytest.approx(theirs.slope)
    assert found.standard_error == pytest.approx(theirs.stderr)
    assert found.high - found.slope == pytest.approx(theirs.stderr * stats.t.ppf(0.975, 5))


def test_the_interval_covers_the_true_slope_about_as_often_as_it_says() -> None:
    hits = [
        found.low < 5 < found.high
        for found in (fit(simulated(5, 0.3, seed)) for seed in range(300))
    ]
    assert 0.92 < np.mean(hits) < 0.995


@pytest.mark.parametrize("own", [None, 0.02])
def test_the_error_of_the_slope_is_that_of_the_pooled_scatter(own: float | None) -> None:
    """Two values each at ln σ = -1, 0, 1, ± 0.1 off the line: s² = 6 · 0.1² / 3, slope ± √(s²/2 /
    2)."""
    x = np.repeat([-1.0, 0.0, 1.0], 2)
    values = np.exp(2 * x + np.tile([0.1, -0.1], 3))
    errors = [own and own * value for value in values.tolist()]
    found = fit_growth(np.exp(x).tolist(), values.tolist(), errors)
    assert found is not None
    assert found.slope == pytest.approx(2)
    assert found.standard_error == pytest.approx((0.02 / 4) ** 0.5)
    assert found.high - found.slope == pytest.approx((0.02 / 4) ** 0.5 * stats.t.ppf(0.975, 3))


def test_measurement_errors_decide_the_weights() -> None:
    values = simulated(2, 0.0, seed=0)
    values[-5:] *= 3  # the last σ is off, and says so
    errors = [0.001 * value for value in values[:-5]] + [2.0 * value for value in values[-5:]]
    assert fit(values, errors).slope == pytest.approx(2, abs=0.05)
    assert fit(values).slope > 2.2


def test_an_exact_power_law_is_found_exactly_and_not_flagged() -> None:
    found = fit(simulated(5.0, 0.0, seed=0))
    assert found.slope == pytest.approx(5, abs=1e-9)
    assert found.flag == ""


def test_straight_lines_are_hardly_ever_flagged_and_bent_ones_are() -> None:
    straight = [fit(simulated(5, 0.2, seed)).flag for seed in range(100)]
    assert sum(bool(flag) for flag in straight) <= 3
    bent = fit(simulated(5, 0.05, seed=0, bend=1.0))
    assert bent.bend == pytest.approx(1.0, abs=0.3)
    assert "slope changes by" in bent.flag


def test_scatter_beyond_the_errors_is_flagged() -> None:
    values = simulated(5, 0.01, seed=0) * np.repeat([1, 1.5, 0.7, 1.5, 0.7, 1.5, 1], 5)
    assert "off the line" in fit(values).flag


def test_zeros_are_left_out_and_too_few_sizes_give_no_fit() -> None:
    values = simulated(2, 0.1, seed=0)
    values[:5] = 0
    found = fit(values)
    assert found.measurements == 30
    assert found.smallest > 0.011
    values[:25] = 0
    assert fit_growth(SIGMA.tolist(), values.tolist(), [None] * 35) is None


def test_an_effect_common_to_all_seeds_at_one_sigma_widens_the_interval() -> None:
    """Repeats say nothing about it; the misfit of the means does, with its own degrees of
    freedom."""
    generator, covered = np.random.default_rng(0), 0
    for _ in range(300):
        sigma = np.repeat([0.1, 0.2, 0.4, 0.8], 10)
        common = np.repeat(generator.normal(scale=0.1, size=4), 10)
        noise = generator.normal(scale=0.01, size=40)
        found = fit_growth(
            list(sigma), list(np.exp(2 * np.log(sigma) + common + noise)), [None] * 40
        )
        assert found is not None
        covered += found.low <= 2 <= found.high
    assert 0.91 * 300 <= covered <= 0.985 * 300


def test_three_values_without_errors_cannot_show_a_bend() -> None:
    def flag(errors: list[float | None]) -> str:
        found = fit_growth([1, 2, 4], [1, 2.4, 4], errors)
        assert found is not None
        return found.flag

    assert flag([None, None, None]) == ""
    assert flag([0.3, 0.7, 1.2]) == ""
    assert "changes" in flag([0.003, 0.007, 0.012])
