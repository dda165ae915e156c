"""Trained gains: what is seen of a model, and what counts as gone, as risen, as staying."""

import math

import pytest
import torch

from hessblocks.models.build import build
from hessblocks.storage.tables import Row
from hessblocks_studies.blocks_paper import gain_trajectories as gains
from hessblocks_studies.blocks_paper.gain_trajectories import RATIO, STUDY, gain_rows
from hessblocks_studies.shared.trained_points import BIGRAMS, GPT2, LOSS
from hessblocks_studies.shared.variants import (
    GAINED,
    GAINED_ORTHOGONAL,
    GAINED_PARALLEL,
    GAINED_WITH_SKIP,
    make_block,
)


def model(variant: str) -> torch.nn.Module:
    block = make_block(variant, width=16, heads=2, mlp_width=32)
    return build(block, depth=2, vocab_size=20, context=8)


@pytest.mark.parametrize(
    ("variant", "attention_skip", "mlp_skip", "init", "layout"),
    [
        (GAINED, 0, 1, "identity", "sequential"),
        (GAINED_PARALLEL, 0, 0, "identity", "parallel"),
        (GAINED_ORTHOGONAL, 0, 1, "orthogonal", "sequential"),
        (GAINED_WITH_SKIP, 1, 1, "identity", "sequential"),
    ],
)
def test_the_blocks_are_those_of_the_papers_figures(
    variant: str, attention_skip: int, mlp_skip: int, init: str, layout: str
) -> None:
    block = make_block(variant, width=16, heads=2, mlp_width=32)
    assert (block.attention_branch.skip, block.mlp_branch.skip) == (attention_skip, mlp_skip)
    assert block.layout == layout
    assert (block.attention.shaping is None) == (variant == GAINED_WITH_SKIP)
    for weight in (block.attention.value, block.attention.first_value, block.attention.projection):
        assert (weight.init, weight.initial_gain, weight.update_gain) == (init, 1.0, 0.2)
        assert weight.trainable_gains


def test_every_gain_is_seen_head_by_head() -> None:
    made = model(GAINED)
    attention = made.model.layers[1].attention
    with torch.no_grad():
        attention.value.update_gain.fill_(-0.3)
        attention.value.initial_gain.fill_(0.5)
        attention.gains.beta.copy_(torch.tensor([1.5, 2.5]))
    rows = gain_rows(made, 0)
    found = {(r["quantity"], r["layer"], r.get("group"), r.get("part")): r["value"] for r in rows}
    assert len(found) == len(rows) == 2 * (2 + 3 * 2 + 1)
    assert found[RATIO, 1, "value", None] == pytest.approx(0.6)
    assert found[RATIO, 1, "projection", None] == pytest.approx(0.2)
    assert found["beta", 1, None, "head 2"] == pytest.approx(2.5)
    assert found["beta_FF", 0, None, None] == pytest.approx(1.7 / 2 / math.sqrt(2))


def of_run(variant: str, seed: int, loss: float | None = 2.0, **last: float) -> list[Row]:
    """Two layers from β/α = 0.2 to what is given; other matrices end at 0.01, other gains at 1."""
    rows: list[Row] = [{"quantity": LOSS, "step": 9, "value": loss}]
    for layer in range(2):
        for group in ("value", "projection"):
            end = last.get(f"{group}{layer}", 0.01)
            place = {"quantity": RATIO, "group": group, "layer": layer}
            rows += [{**place, "step": 0, "value": 0.2}, {**place, "step": 9, "value": end}]
        rows += [
            {"quantity": q, "layer": layer, "step": 9, "value": last.get(f"{q}{layer}", 1.0)}
            for q in gains.SCALARS
        ]
    return [{**row, "variant": variant, "seed": seed} for row in rows]


def references(table: float = 3.0, base: float = 2.0) -> list[Row]:
    """The bigram table and pre-ln, three seeds."""
    return [
        {"variant": name, "seed": seed, "quantity": LOSS, "step": 9, "value": loss + 0.001 * seed}
        for name, loss in ((BIGRAMS, table), ("pre-ln", base))
        for seed in range(3)
    ]


def verdict(rows: list[Row], words: str, beside: list[Row] | None = None) -> bool | None:
    every = [*rows, *(references() if beside is None else beside)]
    (check,) = (check for check in STUDY.summarise(every).checks if words in check.fact)
    return check.holds


@pytest.mark.parametrize(
    ("beside", "holds"),
    [(references(), True), (references(base=2.9), None), (references(table=2.1), None), ([], None)],
)
def test_ratios_count_where_the_block_and_pre_ln_have_learnt(
    beside: list[Row], holds: bool | None
) -> None:
    rows = [row for seed in range(3) for row in of_run(GAINED, seed)]
    assert verdict(rows, "α does not go to 0", beside) is holds


@pytest.mark.parametrize(("first", "holds"), [(0.3, True), (0.005, False)])
def test_the_first_values_are_set_against_the_others(first: float, holds: bool) -> None:
    rows = [row for seed in range(3) for row in of_run(GAINED, seed, value0=first)]
    assert verdict(rows, "is larger than that of the others (skipless") is holds


def test_the_plan_has_a_table_and_pre_ln_at_the_likeliest_rate() -> None:
    plan = STUDY.settings("laptop", 1)
    assert {p.variant for p in plan} == {*gains.VARIANTS, "pre-ln", BIGRAMS, GPT2}
    assert {(p.size.learning_rate, p.name) for p in plan if p.variant != BIGRAMS} == {
        (1e-2, p.variant) for p in plan if p.variant != BIGRAMS
    }


@pytest.mark.parametrize(
    ("last", "count"),
    [
        ({}, 3),
        ({"value0": 0.9}, 3),
        ({"value1": 0.051}, 2),
        ({"value1": 0.051, "projection0": 0.19}, 1),
    ],
)
def test_gone_is_below_what_the_paper_prints_as_0(last: dict[str, float], count: int) -> None:
    """Of three matrices beside the first values, each counted once for all seeds."""
    rows = [row for seed in range(3) for row in of_run(GAINED, seed, **last)]
    assert gains.counts(gains.ratios(rows, GAINED), rise=False) == (count, 3)


@pytest.mark.parametrize(
    ("gone", "matrices", "holds"),
    [(7, 7, None), (4, 7, None), (2, 7, False), (30, 30, True), (12, 21, False)],
)
def test_few_matrices_decide_little_of_a_share(
    gone: int, matrices: int, holds: bool | None
) -> None:
    """Of 7, all 7 come with chance 0.8⁷ = 0.21 where the share is 80 %, 2 or fewer with 0.005."""
    check = gains._gone_check(GAINED, gone, matrices)
    assert check.holds is holds
    if (gone, matrices) == (2, 7):
        assert check.p_value == pytest.approx(2 * 0.004672, rel=1e-3)
        assert check.ours == "2 of 7 matrices, 29% [8%, 64%]"


def test_one_seed_or_seeds_that_disagree_decide_nothing() -> None:
    fact = "of the first layer's values does not go to 0 (skipless, F"
    assert verdict(of_run(GAINED, 0, value0=0.2), fact) is None
    rows = [*of_run(GAINED, 0), *of_run(GAINED, 1, value0=0.2), *of_run(GAINED, 2)]
    assert verdict(rows, fact) is None


def test_a_run_that_diverged_leaves_open_what_the_ratios_say() -> None:
    rows = [*of_run(GAINED, 0), *of_run(GAINED, 1), *of_run(GAINED, 2, None, value1=0.2)]
    assert verdict(rows, "α does not go to 0") is None


@pytest.mark.parametrize(("first", "holds"), [(0.3, True), (0.04, False)])
def test_the_first_values_are_the_exception(first: float, holds: bool) -> None:
    rows = [row for seed in range(3) for row in of_run(GAINED_PARALLEL, seed, value0=first)]
    assert verdict(rows, "the first layer's values does not go to 0 (no skip") is holds


@pytest.mark.parametrize(
    ("beside_skip", "count"),
    [({"value1": 0.3, "projection1": 0.4}, 2), ({"value1": 0.24}, 0), ({}, 0)],
)
def test_ratios_that_rise_are_counted(beside_skip: dict[str, float], count: int) -> None:
    rows = [row for seed in range(3) for row in of_run(GAINED_WITH_SKIP, seed, **beside_skip)]
    assert gains.counts(gains.ratios(rows, GAINED_WITH_SKIP), rise=True) == (count, 3)


@pytest.mark.parametrize(
    ("beside", "without", "holds"),
    [
        ((7, 7), (0, 7), True),
        ((4, 7), (0, 7), None),
        ((0, 7), (7, 7), False),
        ((3, 3), (0, 3), None),
    ],
)
def test_two_counts_are_compared_exactly(
    beside: tuple[int, int], without: tuple[int, int], holds: bool | None
) -> None:
    """4 of 7 against none: a difference as large comes in 2 · C(7, 4) / C(14, 4) = 7 % of cases."""
    check = gains._rise_check(beside, without)
    assert check.holds is holds
    if beside == (4, 7):
        assert check.p_value == pytest.approx(70 / 1001, rel=1e-3)


@pytest.mark.parametrize(("last", "holds"), [(0.9, True), (-0.9, True), (0.02, False)])
@pytest.mark.parametrize(("quantity", "letter"), gains.SCALARS.items())
def test_no_other_gain_goes_to_0(quantity: str, letter: str, last: float, holds: bool) -> None:
    rows = [row for seed in range(3) for row in of_run(GAINED, seed, **{f"{quantity}1": last})]
    assert verdict(rows, f"{letter} does not go to 0") is holds
