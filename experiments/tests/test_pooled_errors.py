"""The rule of verdicts: one error a study, the number of verdicts allowed for, by simulation."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from hessblocks.storage import Scalar
from hessblocks_studies.engine import Check
from hessblocks_studies.shared import differences
from hessblocks_studies.shared.differences import combined, difference
from hessblocks_studies.shared.gathering import allowed_for
from hessblocks_studies.shared.pooled_errors import Residual, Values, pooled_error

LIMIT, DEVIATION = 0.05, 0.02
"""The tolerance of losses and the deviation of a run in the long runs of `trial`, in nats."""
DRAWS = 400


@pytest.fixture(autouse=True)
def pooled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pool the errors of a study once for all of its verdicts, which takes a third of the time."""
    last: list[tuple[Values, Residual | None]] = []

    def pooled(values: Values) -> Residual | None:
        if not last or last[0][0] is not values:
            last[:] = [(values, pooled_error(values))]
        return last[0][1]

    monkeypatch.setattr(differences, "pooled_error", pooled)


def drawn(
    generator: np.random.Generator, means: Sequence[float], deviations: Sequence[float], seeds: int
) -> dict[str, dict[Scalar, float]]:
    """Blocks × seeds of a study whose runs have these means and deviations."""
    noise = generator.normal(size=(len(means), seeds)) * np.array(deviations)[:, None]
    values = np.array(means)[:, None] + noise
    return {str(block): dict(enumerate(map(float, row))) for block, row in enumerate(values)}


def judged(values: Values, *, pooled: bool = True) -> list[Check]:
    """Whether each block matches the first, as a study says."""
    checks = []
    for block in [*values][1:]:
        pair = {"0": values["0"], block: values[block]}
        found = difference(values if pooled else pair, block, "0")
        checks.append(found.matches(block, "", limit=LIMIT))
    return checks


def verdicts(
    means: Sequence[float], deviations: Sequence[float], seeds: int, draws: int = DRAWS
) -> list[list[bool | None]]:
    generator = np.random.default_rng(0)
    return [
        [check.holds for check in allowed_for(judged(drawn(generator, means, deviations, seeds)))]
        for _ in range(draws)
    ]


EVEN = (DEVIATION,) * 8
UNEVEN = (DEVIATION, *(DEVIATION * times for times in (0.5, 0.5, 1, 1, 1, 2, 2)))


LONG = pytest.mark.slow
"""Hundreds of studies are judged in each of these."""


@pytest.mark.parametrize("seeds", [3, pytest.param(5, marks=LONG), pytest.param(8, marks=LONG)])
@pytest.mark.parametrize("deviations", [EVEN, UNEVEN], ids=["one variance", "four times apart"])
def test_a_wrong_verdict_is_among_all_of_a_study_in_5_percent_of_cases(
    seeds: int, deviations: Sequence[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Seven blocks, each a hair within the bound of a match or beyond: every verdict is wrong."""
    wrong = 0
    for side in (1.0 - 1e-9, 1.0 + 1e-9):
        means = (0.0, *(side * LIMIT * sign for sign in (1, -1, 1, -1, 1, -1, 1)))
        for found in verdicts(means, deviations, seeds, DRAWS // 2):
            wrong += any(holds is (side > 1) for holds in found)
    with capsys.disabled():
        print(f"\n{seeds} seeds: a wrong verdict among seven in {wrong / DRAWS:.1%} of studies")
    most = stats.binom.ppf(0.999, DRAWS, 0.05)
    assert wrong <= most


@LONG
def test_power_of_the_rule_at_three_five_and_eight_seeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Four blocks that truly match, three that are truly 0.12 behind."""
    means = (0.0, 0.0, 0.0, 0.0, 0.0, 0.12, 0.12, 0.12)
    power = {}
    for seeds in (3, 5, 8):
        found = np.array(verdicts(means, EVEN, seeds, 150), dtype=object)
        match = float((found[:, :4] == True).mean())  # noqa: E712
        behind = float((found[:, 4:] == False).mean())  # noqa: E712
        generator = np.random.default_rng(1)
        alone = [
            check.holds
            for _ in range(150)
            for check in judged(drawn(generator, means, EVEN, seeds), pooled=False)[:4]
        ]
        power[seeds] = (match, behind, alone.count(True) / len(alone))
        with capsys.disabled():
            print(
                f"\n{seeds} seeds, deviation {DEVIATION}: a match is seen in {match:.0%} of cases "
                f"(with own errors, of one verdict alone, {power[seeds][2]:.0%}), 0.12 nats in "
                f"{behind:.0%}"
            )
    assert power[3][0] < power[5][0] < power[8][0]
    assert power[8][0] > 0.9
    assert power[8][1] > 0.9


def test_the_error_of_two_blocks_is_that_of_their_paired_differences() -> None:
    values: Values = {"a": {0: 1.0, 1: 2.0, 2: 4.0}, "b": {0: 0.9, 1: 2.2, 2: 3.7}}
    gaps = [values["a"][seed] - values["b"][seed] for seed in range(3)]
    found = difference(values, "a", "b")
    assert found.error == pytest.approx(statistics.stdev(gaps) / math.sqrt(3))
    assert found.whole_freedom == pytest.approx(2)
    assert not found.own


def test_the_error_of_a_table_is_its_residual_with_or_without_seeds() -> None:
    """Beside numpy's least squares: seeds that tell much make the residual of blocks the larger."""
    generator = np.random.default_rng(3)
    noise = generator.normal(size=(5, 3))
    for shift in (0.0, 3.0):
        table = noise + shift * np.array([0.0, 1.0, -1.0]) + np.arange(5.0)[:, None]
        values: Mapping[str, Mapping[Scalar, float]] = {
            str(block): dict(enumerate(map(float, row))) for block, row in enumerate(table)
        }
        blocks, seeds = np.kron(np.eye(5), np.ones((3, 1))), np.tile(np.eye(3), (5, 1))
        deviations = []
        for design, freedom in ((blocks, 10), (np.hstack([blocks, seeds]), 8)):
            solution = np.linalg.lstsq(design, table.ravel(), rcond=None)[0]
            left = table.ravel() - design @ solution
            deviations.append(math.sqrt(left @ left / freedom))
        found = pooled_error(values)
        assert found is not None
        assert found.deviation == pytest.approx(max(deviations))
        assert found.freedom == 8
        rows = table - table.mean(axis=1, keepdims=True)
        if deviations[0] > deviations[1]:
            assert found.p_value == pytest.approx(stats.bartlett(*rows).pvalue, rel=1e-3)


def test_what_tells_nothing_of_the_error_is_left_out() -> None:
    values = {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.5, 1: 1.0}, "c": {0: 0.3, 1: 0.4}}
    more = {"lost": {0: 1.0, 1: math.inf}, "table": {0: 3.0, 1: 3.0}, "one": {0: 9.0}}
    assert pooled_error({**values, **more}) == pooled_error(values)
    assert pooled_error({"a": values["a"], **more}) is None


def test_blocks_with_another_variance_have_their_own_errors() -> None:
    generator = np.random.default_rng(0)
    values = drawn(generator, (0.0,) * 6, (0.001, 0.001, 0.001, 0.001, 0.001, 1.0), 4)
    found, calm = difference(values, "5", "0"), difference(values, "1", "0")
    assert found.own
    assert calm.own
    assert calm.error < 0.01 < found.error
    one, other = ([*values[name].values()] for name in ("5", "0"))
    theirs = stats.ttest_ind(one, other, equal_var=False)
    assert found.p_value(0.0) == pytest.approx(theirs.pvalue, rel=1e-3)
    assert found.text().endswith("(4 seeds, own error)")


def test_differences_of_other_runs_add_their_errors() -> None:
    sure = difference({"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 0.5, 1: 1.0, 2: 2.9}}, "a", "b")
    twice = combined([(1.0, sure), (-1.0, replace(sure, mean=0.1))])
    assert twice.mean == pytest.approx(sure.mean - 0.1)
    assert twice.error == pytest.approx(sure.error * math.sqrt(2))
    assert twice.whole_freedom == pytest.approx(2)  # one pooled error
    apart = combined([(1.0, replace(sure, own=True)), (-1.0, sure)])
    assert apart.whole_freedom == pytest.approx(4)
    assert combined([(1.0, sure), (1.0, replace(sure, seeds=1))]).p_value(0.0) is None


def test_a_new_seed_lies_in_its_interval_in_95_percent_of_cases() -> None:
    generator = np.random.default_rng(2)
    inside = 0
    for _ in range(DRAWS):
        values = drawn(generator, (0.0,) * 8, EVEN, 4)
        known = {b: {s: v for s, v in each.items() if s < 3} for b, each in values.items()}
        found = difference(known, "1", "0")
        new = values["1"][3] - values["0"][3]
        inside += abs(new - found.mean) < found.of_one_seed()
    assert stats.binomtest(inside, DRAWS, 0.95).pvalue > 1e-3


def check(p_value: float | None, *, holds: bool | None = True) -> Check:
    return Check(fact="f", expected="e", ours="1", holds=holds, p_value=p_value)


def test_verdicts_are_allowed_for_by_their_number() -> None:
    """Of three, 0.01 ≤ 0.05 / 3, 0.03 > 0.05 / 2; that of 0.04 follows; controls do not count."""
    found = allowed_for([check(0.04), check(None), check(0.01), check(0.03)])
    assert [one.holds for one in found] == [None, True, True, None]
    assert found[0].ours == "1; decided alone, not among 3 (Holm)"
    assert found[2].ours == "1"
    assert [one.holds for one in allowed_for([check(0.04)])] == [True]
    void = check(0.001).void("void")
    assert (void.holds, void.p_value, void.void("void").ours) == (None, None, "1; void")
    assert [one.holds for one in allowed_for([check(0.04), void])] == [True, None]
