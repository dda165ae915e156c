"""Differences over seeds: what diverges, what all seeds share, and what one seed can say."""

import math
from dataclasses import replace

import pytest

from experiments.tests import toy
from hessblocks.figures.figure import Series
from hessblocks.statistics import mean_and_error
from hessblocks_studies.engine.study import Check, Summary
from hessblocks_studies.shared.differences import (
    UNDECIDED,
    Difference,
    difference,
    gaps,
    judged_by,
    over_seeds,
)

LOST = math.inf


@pytest.mark.parametrize(
    ("first", "second", "above", "words"),
    [
        ([3.0, 3.2, 3.1], [1.0, 1.2, 1.1], True, "+2.000 ± 0.000 [+2.000, +2.000] nats (3 seeds)"),
        ([3.0, 1.0, 2.0], [2.0, 2.0, 2.0], None, "+0.000 ± 0.577 [-2.484, +2.484] nats (3 seeds)"),
        ([LOST, LOST], [1.0, 1.0], True, "first diverged in 2 of 2 seeds"),
        ([1.0, 1.0], [LOST, LOST], False, "second diverged in 2 of 2 seeds"),
        ([LOST, 1.0], [1.0, 1.0], None, "first diverged in 1 of 2 seeds"),
        ([LOST, LOST], [LOST, LOST], None, "not finished, or diverged"),
        ([LOST, 1.0], [1.0, LOST], None, "not finished, or diverged"),
        ([3.0], [1.0], None, "+2.000 nats (1 seed)"),
        ([LOST], [1.0], None, "first diverged in 1 of 1 seeds"),
    ],
)
def test_runs_that_diverge_decide_where_all_of_one_block_do(
    first: list[float], second: list[float], above: bool | None, words: str
) -> None:
    values = {"first": dict(enumerate(first)), "second": dict(enumerate(second))}
    found = difference(values, "first", "second")
    assert found.above(0.5) is above
    assert found.text("nats") == words


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({0: 0.5, 3: 0.7}, "0.600 ± 0.100 [-0.671, 1.871] times (2 seeds)"),
        ({2: -0.5}, "-0.500 times (1 seed)"),
        ({}, "not finished, or diverged"),
    ],
)
def test_a_block_of_its_own_has_no_sign_and_no_other_block(
    values: dict[int, float], words: str
) -> None:
    assert over_seeds(values).text("times", signed=False) == words


def test_what_all_seeds_share_counts_beside_their_spread() -> None:
    sure = Difference(mean=-0.07, error=0.014, seeds=3)
    assert sure.above(0.0) is False
    unsure = Difference(mean=-0.07, error=0.014, seeds=3, common=0.12)
    assert unsure.above(0.0) is None
    assert unsure.text("times", digits=2) == "-0.07 ± 0.12 [-0.31, +0.17] times (3 seeds)"


def test_a_verdict_needs_95_percent_on_both_sides() -> None:
    """Of three seeds the mean must be 4.303 errors away: Student's t at 0.975, 2 degrees of
    freedom."""
    near, far = (Difference(mean=0.01 * t, error=0.01, seeds=3) for t in (4.25, 4.35))
    assert (near.above(0.0), far.above(0.0)) == (None, True)
    wide = Difference(mean=1.95, error=0.0, seeds=3, common=1.0)
    assert (wide.above(0.0), wide.above(-0.02)) == (None, True)


def test_one_seed_has_no_error() -> None:
    mean, error = mean_and_error([2.0])
    assert (mean, math.isnan(error)) == (2.0, True)
    assert Series(name="one", x=(1.0,), y=(mean,), error=(error,)).error == ()
    summary = Summary(figure=toy.summarise([]).figure, checks=(), tables={"t": [{"error": error}]})
    assert summary.to_dict()["tables"] == {"t": [{"error": None}]}


def test_a_reason_is_reported_once_however_many_controls_give_it() -> None:
    check = Check(fact="f", expected="e", ours="1", holds=True)
    open_, failed = (replace(check, holds=holds) for holds in (None, False))
    for _ in range(2):
        check = judged_by(open_, check, "void")
    assert (check.ours, check.holds) == (f"1; {UNDECIDED}", None)
    assert judged_by(failed, check, "void").ours == f"1; {UNDECIDED}; void"


@pytest.mark.parametrize(
    ("mean", "around", "holds"),
    [
        (0.0, 0.0, True),
        (0.07, 0.0, False),
        (-0.07, 0.0, False),
        (5.93, 6.0, False),
        (6.02, 6.0, True),
        (0.02, 6.0, False),
        (-0.5, -0.5, True),
    ],
)
def test_a_match_is_with_a_value_to_both_sides(mean: float, around: float, holds: bool) -> None:
    sure = Difference(mean=mean, error=1e-3, seeds=3)
    assert sure.matches("f", "e", limit=0.05, around=around).holds is holds
    assert replace(sure, seeds=1).matches("f", "e", limit=0.05, around=around).holds is None
    assert replace(sure, error=10.0).matches("f", "e", limit=0.05, around=around).holds is None


@pytest.mark.parametrize(
    ("mean", "limit", "above", "holds"),
    [
        (1.0, 0.0, True, True),
        (1.0, 0.0, False, False),
        (-1.0, 0.0, True, False),
        (-1.0, 0.0, False, True),
        (0.2, 0.3, True, False),
        (-0.2, -0.3, True, True),
        (0.3, 0.3, True, None),
    ],
)
def test_a_fact_holds_on_the_side_of_the_limit_that_it_names(
    mean: float, limit: float, above: bool, holds: bool | None
) -> None:
    found = Difference(mean=mean, error=1e-3, seeds=3)
    assert found.judged("f", "e", limit=limit, above=above).holds is holds


def test_a_check_says_the_mean_in_its_unit() -> None:
    found = Difference(mean=0.5, error=0.125, seeds=2)
    for check in (
        found.judged("f", "e", unit="times", digits=1, signed=False),
        found.matches("f", "e", limit=1.0, unit="times", digits=1, signed=False),
    ):
        assert (check.fact, check.expected, check.ours) == (
            "f",
            "e",
            "0.5 ± 0.1 [-1.1, 2.1] times (2 seeds)",
        )
    assert found.judged("f", "e").ours == "+0.500 ± 0.125 [-1.088, +2.088] nats (2 seeds)"


def test_gaps_are_of_common_seeds() -> None:
    assert gaps({0: 3.0, 1: 4.0, "a": 1.0}, {1: 1.0, 2: 9.0, "a": 3.0}) == {1: 3.0, "a": -2.0}
    assert gaps({}, {0: 1.0}) == gaps({0: 1.0}, {}) == {}


def test_an_error_of_three_repetitions_reaches_as_far_as_student_says() -> None:
    """The gap is 0.07, above the limit by 0.02: 1.96 errors of 0.008 are less than that, 4.3 are
    more."""
    assert Difference(mean=0.07, error=0.0, seeds=3, common=0.008).above(0.05) is True
    of_three = Difference(mean=0.07, error=0.0, seeds=3, common=0.008, common_freedom=2)
    assert of_three.above(0.05) is None
