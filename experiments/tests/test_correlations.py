"""Rank correlations over blocks: values that are known, and how often their intervals hold the
truth."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from hessblocks_studies.our_questions.optimiser_plan import FAMILIES, FAMILY_OF
from hessblocks_studies.shared import correlations
from hessblocks_studies.shared.correlations import correlation
from hessblocks_studies.shared.measured_curvature import spread

NINE = [2, 3, 1, 1, 1, 1]
"""Sizes of the families of `optimisers`."""
Values = dict[str, dict[int, float]]
SIX = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def of(values: Sequence[float]) -> Values:
    """One seed a block."""
    return {f"b{place}": {0: value} for place, value in enumerate(values)}


@pytest.mark.parametrize(
    ("y", "value", "agrees"),
    [
        ([2.0, 4.0, 8.0, 16.0, 32.0, math.inf], 1.0, True),
        ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], -1.0, False),
        ([3.0, 1.0, 4.0, 6.0, 2.0, 5.0], 3 / 7, None),
        ([1.0] * 6, math.nan, None),
    ],
)
def test_the_coefficient_and_its_verdict(y: list[float], value: float, agrees: bool | None) -> None:
    found = correlation(of(SIX), of(y))
    assert found.value == pytest.approx(value, nan_ok=True)
    if not math.isnan(value):
        assert found.value == pytest.approx(stats.spearmanr(SIX, y).statistic)
    assert found.agrees() is agrees
    assert math.isnan(value) or -1 <= found.low <= found.value <= found.high <= 1


def test_four_families_show_nothing_and_of_two_blocks_nothing_is_known() -> None:
    found = correlation(of(SIX[:4]), of(SIX[:4]))
    assert (found.low, found.high, found.agrees()) == (-1.0, 1.0, None)
    assert correlation(of(SIX[:5]), of(SIX[:5])).agrees() is True
    akin = dict.fromkeys(("b0", "b1", "b2"), "one")
    assert correlation(of(SIX), of(SIX), akin).agrees() is None
    assert correlation(of(SIX), of(SIX[:2])) is None


def test_blocks_and_seeds_that_both_sides_have_count() -> None:
    x = {**of(SIX), "alone": {0: 9.0}, "elsewhere": {1: -9.0}}
    y = {**of(SIX), "elsewhere": {0: 9.0}}
    x["b0"][7] = 1e9
    assert correlation(x, y) == correlation(of(SIX), of(SIX))
    assert str(correlation(x, y)) == "Spearman's ρ = +1.00 [+0.97, +1.00], 6 blocks"


def test_what_a_seed_does_to_all_blocks_alike_blurs_nothing() -> None:
    """Equal seeds see equal data: all blocks are moved together, and their order stays."""
    order = [3.0, 1.0, 4.0, 6.0, 2.0, 5.0]
    moved = [
        {
            f"b{place}": {seed: value + 10 * seed for seed in range(3)}
            for place, value in enumerate(each)
        }
        for each in (SIX, order)
    ]
    alone = [
        {f"b{place}": dict.fromkeys(range(3), value) for place, value in enumerate(each)}
        for each in (SIX, order)
    ]
    assert correlation(*moved) == correlation(*alone)


def drawn(
    sizes: Sequence[int], rho: float, generator: np.random.Generator
) -> tuple[Values, Values, dict[str, str]]:
    """Normal pairs of that correlation, seven tenths of them the family's own; three seeds with
    noise of 0.2."""
    root = np.linalg.cholesky([[1.0, rho], [rho, 1.0]])
    x: Values = {}
    y: Values = {}
    families = {}
    for family, size in enumerate(sizes):
        own = root @ generator.normal(size=2)
        for one in range(size):
            name = f"{family}.{one}"
            place = 0.7**0.5 * own + 0.3**0.5 * (root @ generator.normal(size=2))
            noisy = place + 0.2 * generator.normal(size=(3, 2))
            x[name], y[name] = ({s: float(noisy[s, side]) for s in range(3)} for side in (0, 1))
            families[name] = str(family)
    return x, y, families


def coverage(sizes: Sequence[int], rho: float, *, akin: bool = True, runs: int = 120) -> float:
    """Share of draws whose interval holds the coefficient of all pairs, 6/π arcsin ρ/2 for normal
    ones."""
    generator, truth = np.random.default_rng(0), 6 / math.pi * math.asin(rho / 2)
    held = 0
    for _ in range(runs):
        x, y, families = drawn(sizes, rho, generator)
        found = correlation(x, y, families if akin else None)
        held += found.low <= truth <= found.high
    return held / runs


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlations, "DRAWS", 100)


LONG = pytest.mark.slow
"""Each of the intervals is a bootstrap, and the share needs a hundred of them."""


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("rho", [pytest.param(0.0, marks=LONG), 0.9])
@pytest.mark.parametrize(
    "sizes",
    [
        [1] * 5,
        pytest.param(NINE, marks=LONG, id="sizes1"),
        pytest.param([6, 1, 2, 5, 1, 1], marks=LONG, id="sizes2"),
    ],
)
def test_the_interval_holds_the_truth(sizes: list[int], rho: float) -> None:
    """Five blocks, the six families of `optimisers`, those of `simplification`."""
    assert coverage(sizes, rho) >= 0.92


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize(("rho", "share"), [(0.0, 0.0), (0.85, 0.15), (0.95, 0.35), (0.99, 0.65)])
def test_how_often_six_families_decide(rho: float, share: float) -> None:
    """The shares that the rule of `optimisers` tells, to what 200 draws can say."""
    assert [list(FAMILY_OF.values()).count(one) for one in FAMILIES] == NINE
    generator = np.random.default_rng(1)
    decided = [correlation(*drawn(NINE, rho, generator)).agrees() is not None for _ in range(200)]
    assert np.mean(decided) == pytest.approx(share, abs=0.1)


@LONG
@pytest.mark.usefixtures("few_draws")
def test_blocks_that_are_akin_do_not_count_as_independent() -> None:
    """A bootstrap over the blocks of families would be too sure."""
    assert coverage([6, 1, 2, 5, 1, 1], 0.5, akin=False, runs=200) < 0.92


def test_noise_of_the_estimates_is_no_spread() -> None:
    """Norms that are equal, and norms of 1 and 10, each with errors of 20 %: the mean over many
    draws."""
    generator = np.random.default_rng(0)
    for truth in (np.ones(24), np.array([1.0, 10.0] * 12)):
        want = float(np.log10(truth).std(ddof=1))
        found = []
        for _ in range(300):
            seen = truth * np.exp(0.2 * generator.normal(size=24))
            norms = {str(place): (float(v), 0.2 * float(v)) for place, v in enumerate(seen)}
            found.append(spread(norms))
        values = np.array([value for value, _ in found])
        assert (values**2).mean() == pytest.approx(want**2, abs=0.003)
        if want:
            errors = np.array([error for _, error in found])
            assert errors.mean() == pytest.approx(values.std(), rel=0.2)


def test_the_spread_of_exact_norms_is_their_standard_deviation() -> None:
    value, error = spread(
        {"a": (1.0, 0.0), "b": (10.0, 0.0), "c": (100.0, 0.0), "zero": (0.0, 0.0)}
    )
    assert (value, error) == (pytest.approx(1.0), 0.0)
