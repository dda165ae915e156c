"""How all blocks grow: one moment is scaled at a time, and a power that is off is told."""

from typing import Any

import pytest
from torch import Tensor

from hessblocks_studies.engine import Check
from hessblocks_studies.hessian_paper.cross_blocks import (
    EXPECTED,
    MOMENTS,
    PAIRS,
    QUANTITIES,
    CrossSettings,
    measure,
    moment_layer,
    summarise,
)


def settings(quantity: str, seed: int = 0) -> CrossSettings:
    return CrossSettings(width=4, sums=2, seed=seed, quantity=quantity)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    drawn = [settings(quantity, seed) for quantity in QUANTITIES for seed in range(3)]
    return [row for one in drawn for row in measure(one)]


@pytest.mark.parametrize("scaled", MOMENTS)
def test_one_moment_is_scaled_and_the_others_stay(scaled: str) -> None:
    def moments(size: float) -> dict[str, Tensor]:
        found = moment_layer(settings(scaled), size).moments
        each = {"first": found.first, "second": found.second, "third": found.third}
        return {name: moment[:, 0, -1] for name, moment in each.items()}

    whole, small = moments(1.0), moments(0.5)
    for name in MOMENTS:
        wanted = whole[name] * (0.5 if name == scaled else 1.0)
        assert float((small[name] - wanted).norm() / wanted.norm()) < 1e-3


def test_every_pair_of_groups_has_an_expected_power_in_both_parts() -> None:
    assert len(EXPECTED) == 2 * len(PAIRS) == 12


def checks(rows: list[dict[str, Any]]) -> dict[str, Check]:
    return {check.fact: check for check in summarise(rows).checks}


def test_all_powers_are_those_of_theory_and_a_planted_one_is_not(rows: Any) -> None:
    assert {check.holds for check in checks(rows).values()} == {True}
    steeper = [
        {**row, "value": row["value"] * row["size"] ** (row["quantity"] == "key")} for row in rows
    ]
    assert {check.holds for fact, check in checks(steeper).items() if "powers" in fact} == {False}
    not_zero = [{**row, "value": row["value"] or 1e-30} for row in rows]
    zero = checks(not_zero)["H_f of value, value"]
    assert (zero.holds, zero.ours) == (False, "1e-30")


def test_what_is_not_measured_yet_decides_nothing(rows: Any) -> None:
    found = checks([row for row in rows if row["quantity"] != "third"])
    assert {check.holds for fact, check in found.items() if "powers" in fact} == {None}
    assert "M_3" not in found["powers in H_o of value, value"].ours


def test_the_caption_says_what_is_measured(rows: Any) -> None:
    def caption(some: list[dict[str, Any]]) -> str:
        return summarise(some).figure.caption

    power, zero = "No power is farther than", "H_f of value, value is 0."
    assert power in caption(rows)
    assert zero in caption(rows)
    assert power not in caption([])
    assert zero not in caption([])
    assert zero not in caption([row for row in rows if row["row"] != row["column"]])
    not_zero = [{**row, "value": row["value"] or 1e-30} for row in rows]
    assert zero not in caption(not_zero)
