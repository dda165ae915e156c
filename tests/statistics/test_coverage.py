"""The interval of the largest over the smallest norm holds the truth as often as error bars must.

The levels are those of every error bar here: 60, 90 and 98 % where 1, 2 and 3 errors are meant.
"""

import numpy as np
import pytest
import torch

from hessblocks.linalg import norm_from_squares
from hessblocks.statistics import log_ratio
from tests.linalg.coverage import LEVELS
from tests.statistics.simulated import NOMINAL, Simulated, norms, simulated, spread_over, squares

GROUPS = (4, 8, *(pytest.param(groups, marks=pytest.mark.slow) for groups in (24, 45)))
"""Of many groups a thousand draws take most of the time."""
ROUNDING = 1e-6


def shares(found: Simulated) -> dict[int, float]:
    """Share of draws whose interval holds the truth, by width."""
    inside = {}
    for width, level in NOMINAL.items():
        _, low, high = log_ratio(found.logs, found.errors, level)
        held = (low <= found.truth + ROUNDING) & (found.truth <= high + ROUNDING)
        inside[width] = float(held.mean())
    return inside


def test_the_simulated_errors_are_those_of_the_library() -> None:
    drawn = squares(probes=8, groups=4)[:5]
    logs, errors = norms(drawn)
    for one, log, error in zip(drawn.reshape(-1, 8), logs.ravel(), errors.ravel(), strict=True):
        norm = norm_from_squares(torch.tensor(one))
        assert norm.value == pytest.approx(np.exp(log))
        assert norm.relative_error == pytest.approx(error)


@pytest.mark.parametrize("probes", [8, 16])
@pytest.mark.parametrize("decades", [0, 0.3, 1, 4])
@pytest.mark.parametrize("groups", GROUPS)
def test_the_interval_holds_the_truth(groups: int, decades: float, probes: int) -> None:
    found = shares(simulated(spread_over(decades, groups), probes))
    assert all(found[width] >= level for width, level in LEVELS.items()), found


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("groups", GROUPS)
def test_it_holds_where_one_stands_apart_from_equals(groups: int, side: int) -> None:
    places = np.zeros(groups)
    places[0] = side * np.log(10)
    found = shares(simulated(places, probes=8))
    assert all(found[width] >= level for width, level in LEVELS.items()), found


@pytest.mark.parametrize("groups", [4, 8, 24, pytest.param(45, marks=pytest.mark.slow)])
def test_it_holds_for_two_crowds(groups: int) -> None:
    places = np.repeat([0.0, np.log(10)], groups // 2 + groups % 2)[:groups]
    found = shares(simulated(places, probes=8))
    assert all(found[width] >= level for width, level in LEVELS.items()), found


@pytest.mark.parametrize("probes", [8, 16])
@pytest.mark.parametrize("groups", GROUPS)
def test_over_four_decades_it_is_nearly_as_narrow_as_the_plain_one(
    groups: int, probes: int
) -> None:
    found = simulated(spread_over(4, groups), probes)
    _, low, high = log_ratio(found.logs, found.errors, NOMINAL[2])
    assert np.mean(high - low) <= 1.2 * np.mean(4 * found.plain()[1])


@pytest.mark.parametrize("groups", GROUPS)
def test_the_width_stays_within_bounds_for_equal_norms(groups: int) -> None:
    found = simulated(np.zeros(groups), probes=16)
    _, low, high = log_ratio(found.logs, found.errors, NOMINAL[2])
    assert np.mean(high - low) <= 1.4 * np.mean(4 * found.plain()[1])


@pytest.mark.parametrize("probes", [8, 16])
@pytest.mark.parametrize("decades", [0, 0.3, 1, 4])
@pytest.mark.parametrize("groups", GROUPS)
def test_the_estimate_is_off_by_less_than_an_error(
    groups: int, decades: float, probes: int
) -> None:
    found = simulated(spread_over(decades, groups), probes)
    estimate = log_ratio(found.logs, found.errors, NOMINAL[2])[0]
    plain, error = found.plain()
    bias = abs(np.mean(estimate) - found.truth) / np.mean(error)
    assert bias < 0.65
    if decades == 0:
        assert bias < 0.6 * (np.mean(plain) - found.truth) / np.mean(error)


def test_the_levels_can_fail() -> None:
    """The ratio of the estimates as they are lies far above the truth of equal norms."""
    found = simulated(np.zeros(45), probes=16).plain_shares()
    assert found[1] < 0.1
    assert found[2] < 0.6
    assert found[3] < 0.95
