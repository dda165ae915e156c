"""The rule that chooses the baseline, on losses made up here."""

import math

import pytest

from hessblocks_studies.fair_trial.baseline import LABELS, STUDY, chosen, inside, obstacle
from hessblocks_studies.shared.trained_points import LOSS

RATES = (1e-3, 3e-3, 1e-2)
GRID = {1e-3: 0.4, 3e-3: 0.0, 1e-2: 0.3}


def losses(**levels: float) -> dict[str, dict[float, list[float]]]:
    """All pairs at 3 nats, but for those that are named by their place; two seeds 0.02 apart."""
    level = dict.fromkeys(LABELS, 3.0)
    level |= {LABELS[int(place[1:])]: value for place, value in levels.items()}
    return {
        label: {rate: [value + more - 0.01, value + more + 0.01] for rate, more in GRID.items()}
        for label, value in level.items()
    }


def test_the_lowest_loss_is_taken() -> None:
    assert obstacle(losses(_5=2.5)) is None
    assert chosen(losses(_5=2.5)) == LABELS[5]


def test_of_equal_pairs_the_first_is_taken() -> None:
    """The joint error is 0.0141 · √(2/2); two of them are 0.028."""
    assert chosen(losses(_2=2.5, _6=2.48)) == LABELS[2]
    assert chosen(losses(_2=2.5, _6=2.46)) == LABELS[6]
    assert chosen(losses()) == LABELS[0]


def test_an_end_that_diverges_is_worse() -> None:
    found = losses()
    found[LABELS[0]][1e-2] = [math.inf, 3.0]
    assert inside(found[LABELS[0]])
    assert obstacle(found) is None


def test_a_best_rate_at_an_end_asks_for_a_longer_grid() -> None:
    found = losses()
    found[LABELS[3]] = dict(zip(RATES, ([3.0, 3.1], [2.9, 2.9], [2.8, 2.8]), strict=True))
    assert obstacle(found) == f"the grid must be longer for: {LABELS[3]}"


@pytest.mark.parametrize("lost", ["a pair", "a rate", "a seed", "all but two rates"])
def test_where_something_is_not_measured_nothing_is_chosen(lost: str) -> None:
    found = losses(_5=2.5)
    if lost == "a pair":
        del found[LABELS[4]]
    elif lost == "a rate":
        del found[LABELS[4]][1e-3]
    elif lost == "a seed":
        found[LABELS[4]][1e-3].pop()
    else:
        found = {label: {1e-3: each[1e-3], 3e-3: each[3e-3]} for label, each in found.items()}
    assert obstacle(found) == "too little measured"


def rows(found: dict[str, dict[float, list[float]]]) -> list[dict[str, object]]:
    return [
        {
            "variant": f"{label}, rate {rate:g}",
            "seed": seed,
            "step": 9,
            "quantity": LOSS,
            "value": loss,
        }
        for label, each in found.items()
        for rate, seeds in each.items()
        for seed, loss in enumerate(seeds)
    ]


def test_the_verdict_and_its_control() -> None:
    table = {"bigram table": {3e-3: [3.2, 3.2]}}
    checks = STUDY.summarise(rows(losses(_5=2.5) | table)).checks
    assert (checks[0].holds, checks[0].ours) == (False, f"the rule takes {LABELS[5]}")
    assert checks[1].holds is True
    assert [check.holds for check in STUDY.summarise(rows(losses())).checks] == [True]
    assert [check.holds for check in STUDY.summarise([]).checks] == [None]
