"""Sixteen blocks: what unevenness is taken over, verdicts that follow it, and a run that is
drawn."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments.tests.smoke_runs import run_a_point_of_each_kind, run_whole
from hessblocks.curvature import Problem, group_norms, parameter_groups
from hessblocks.storage import NORM
from hessblocks.storage.tables import Row
from hessblocks_studies.data.texts import text_of
from hessblocks_studies.engine.study import Check
from hessblocks_studies.our_questions.simplification import (
    BASE,
    BEST,
    BLOCKS,
    FAMILIES,
    FAMILY_OF,
    RATES,
    SIMPLE,
    STAGES,
    STUDY,
    SimplificationSettings,
    measure,
    points,
)
from hessblocks_studies.shared import correlations
from hessblocks_studies.shared.measured_curvature import (
    HETEROGENEITY,
    SETS,
    SPREAD,
    curvature_rows,
    spread,
)
from hessblocks_studies.shared.trained_points import BIGRAMS, GPT2, LOSS, make_model

PLAN = points("laptop", None)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlations, "DRAWS", 60)


def test_the_blocks_are_no_chain_and_each_is_built_as_it_is_named() -> None:
    assert len(BLOCKS) == len(set(BLOCKS)) == 16
    assert {SIMPLE, BASE, "post-ln", "modern"} <= set(BLOCKS)
    built = {
        p.label: make_model(p).config.block
        for p in points("smoke", 1)
        if p.phase == "runs" and p.label in BLOCKS
    }
    assert len({str(block) for block in built.values()}) == 16
    for label, block in built.items():
        kind = block["position"]["kind"]
        assert kind.startswith("sinusoidal" if label.endswith("sinusoidal") else "rotary"), label
        first = (block["first_norm"] or block["norm"])["kind"]
        assert (first == "layer-norm") == label.endswith("LayerNorm"), label
        assert (block["norm"]["kind"] == "no-norm") == (label in ("sas-p-no-norm", "op")), label


def test_grids_are_half_decades_and_hold_the_rates_of_the_runs() -> None:
    assert set(RATES) == set(BLOCKS)
    assert set(BEST) == {*BLOCKS, GPT2}
    for label, rates in RATES.items():
        assert BEST[label] in rates
        halves = sorted(round(2 * math.log10(rate)) for rate in rates)
        assert halves == list(range(halves[0], halves[0] + len(rates))), label
        assert len(rates) >= 3
    assert {p.seed for p in PLAN if p.phase == "tuning"} == {0}
    assert {p.seed for p in PLAN if p.phase == "runs"} == {1, 2, 3}
    assert all(bool(p.probe) == (p.phase == "runs" and p.label in BLOCKS) for p in PLAN)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_curvature_is_measured_at_every_stage(scale: str) -> None:
    size = points(scale, 1)[0].size  # type: ignore[arg-type]
    stages = [size.steps * stage // STAGES for stage in range(1, STAGES + 1)]
    assert [stage % size.evaluate_every for stage in stages] == [0] * STAGES


@pytest.mark.parametrize("block", ["sas", "pre-ln"])
def test_unevenness_is_that_of_the_measured_norms_of_its_set(block: str) -> None:
    """Of the matrices alone, of those that all blocks have, and of everything, at five moments.

    Before training without keys: those of sas have no curvature, those of pre-ln have some.
    """
    settings = next(p for p in points("smoke", 1) if p.label == block and p.phase == "runs")
    rows = measure(settings)
    steps = sorted({row["step"] for row in rows if row["quantity"] == SPREAD})
    assert steps == [0, 2, 4, 6, 8]
    attention = {f"attention.{name}" for name in ("query", "key", "value", "projection")}
    common = {"attention.query", "mlp.in", "mlp.out"}
    inner = attention | common
    for step in steps:
        norms = {
            row["group"]: (row["value"], row["standard_error"] or 0.0)
            for row in rows
            if row["quantity"] == NORM and (row["part"], row["step"]) == ("full", step)
        }
        found = {
            row["group"]: row for row in rows if row["quantity"] == SPREAD and row["step"] == step
        }
        assert set(found) == set(SETS)
        for name, kept in zip(SETS, (inner, common, None), strict=True):
            own = {
                group: norm
                for group, norm in norms.items()
                for matrix in [group.partition("layers.0.")[2]]
                if (kept is None or matrix in kept) and (step or matrix != "attention.key")
            }
            value, error = spread(own)
            assert found[name]["value"] == pytest.approx(value), name
            assert found[name]["standard_error"] == pytest.approx(error), name
    uneven = [row for row in rows if row["quantity"] == HETEROGENEITY]
    assert len(uneven) == 5 * len(SETS)
    assert all(row["standard_error"] is not None for row in uneven)


def test_each_seed_has_a_batch_and_probes_of_its_own() -> None:
    """Norms of one and the same model, measured anew with two seeds."""
    settings = next(p for p in points("smoke", 1) if p.label == "sas" and p.phase == "runs")
    probe = settings.probe
    assert probe
    torch.manual_seed(0)
    model, corpus = make_model(settings), text_of(settings.size)
    batches = []
    for seed in (1, 2):
        batches.append(corpus.curvature_batch(probe.sequences, probe.tokens, seed))
        problem = Problem(model.eval(), batches[-1], loss="causal-lm")
        norms = group_norms(problem, parameter_groups(model), probes=probe.probes, seed=seed)
        found = {
            row["group"]: row["value"]
            for row in curvature_rows(model, corpus, probe, seed)
            if (row["quantity"], row.get("part")) == (NORM, "full")
        }
        assert found == {group: each["full"].value for group, each in norms.items()}
    assert (batches[0]["input_ids"] != batches[1]["input_ids"]).any()


Level = Callable[[SimplificationSettings], float]
ORDER = {block: place / len(BLOCKS) for place, block in enumerate(BLOCKS)}


def goes_with(spreads: dict[str, float]) -> Level:
    """The more uneven, the higher the loss."""

    def level(point: SimplificationSettings) -> float:
        loss = {BIGRAMS: 4.6, GPT2: 3.1}.get(point.label)
        loss = 3.0 + 0.5 * spreads[point.label] if loss is None else loss
        if point.tuned:
            loss += math.log10(point.size.learning_rate / BEST[point.label]) ** 2
        return loss + 0.001 * point.seed

    return level


def rows(level: Level | None = None, spreads: dict[str, float] = ORDER) -> list[Row]:
    level = level or goes_with(spreads)
    with pytest.MonkeyPatch.context() as patch:
        for label in BLOCKS:
            rate = BEST[label]
            patch.setitem(RATES, label, (rate, rate * 10**0.5, rate / 10**0.5))
        plan = points("laptop", None)
    found: list[Row] = []
    for one in plan:
        end = level(one)
        lost = not math.isfinite(end)  # at the step 400
        values: list[Row] = [
            {"quantity": LOSS, "step": 0, "value": 4.6 if one.label == BIGRAMS else 7.0},
            {"quantity": LOSS, "step": 400 if lost else 1200, "value": None if lost else end},
        ]
        if one.probe:
            values += [
                {"quantity": quantity, "group": name, "step": 300 * stage,
                 "value": spreads[one.label] + (1 + 0.01 * one.seed) * (quantity == HETEROGENEITY)}
                for quantity in (SPREAD, HETEROGENEITY)
                for name in SETS
                for stage in range(STAGES + 1 if not lost else 2)
            ]  # fmt: skip
        found += one.placed([{**one.owner, **value} for value in values])
    return found


def checks(found: list[Row]) -> dict[str, Check]:
    return {check.fact: check for check in STUDY.summarise(found).checks}


def training(found: list[Row]) -> list[Check]:
    each = [check for fact, check in checks(found).items() if fact.startswith("the more uneven")]
    assert len(each) == 9
    return each


def test_verdicts_follow_the_order_of_the_losses() -> None:
    assert {check.holds for check in training(rows())} == {True}
    turned = {block: -value for block, value in ORDER.items()}
    assert {check.holds for check in training(rows(goes_with(turned)))} == {False}
    assert all(check.ours.endswith("16 blocks of 6 families") for check in training(rows()))


def test_evenness_is_judged_to_both_sides() -> None:
    for more in (-0.5, 0.5):
        spreads = ORDER | {SIMPLE: ORDER[BASE] + more}
        found = [
            check for fact, check in checks(rows(spreads=spreads)).items() if "more even" in fact
        ]
        assert {check.holds for check in found} == {more < 0}
        assert len(found) == 6


def test_verdicts_are_void_where_a_rate_is_at_an_end_or_pre_ln_has_not_learnt() -> None:
    def rising(point: SimplificationSettings) -> float:
        high = point.tuned and point.label == "op" and point.size.learning_rate > 2 * BEST["op"]
        return goes_with(ORDER)(point) - 2 * bool(high)

    found = training(rows(rising))
    assert {check.holds for check in found} == {None}
    assert all(
        check.ours.endswith("void, since the best rate of op is not inside its grid")
        for check in found
    )
    short = training(rows(lambda p: goes_with(ORDER)(p) - 1.5 * (p.label == BIGRAMS)))
    assert {check.holds for check in short} == {None}


def test_verdicts_are_void_where_the_base_is_no_base() -> None:
    """Pre-ln with zero queries at the table of pairs, or no table to tell; pre-ln itself is well
    below it."""
    poor = rows(lambda p: 4.55 if p.label == BASE and p.phase == "runs" else goes_with(ORDER)(p))
    without = [row for row in rows() if row["variant"] != BIGRAMS]
    for found, why in (
        (poor, f"void, since {BASE} does not end"),
        (without, "as its control is"),
    ):
        verdicts = [
            c for fact, c in checks(found).items() if "uneven" in fact or "more even" in fact
        ]
        assert len(verdicts) == 15
        assert {check.holds for check in verdicts} == {None}
        assert all(why in check.ours for check in verdicts)


def test_nothing_is_decided_before_all_blocks_are_measured() -> None:
    found = training([row for row in rows() if row["variant"] != "op" or row["phase"] != "runs"])
    assert {check.holds for check in found} == {None}
    said = "nothing is decided before all their seeds are measured: op"
    assert all(said in check.ours for check in found)
    found = training([row for row in rows() if (row["variant"], row["seed"]) != ("op", 3)])
    assert {check.holds for check in found} == {None}


def test_blocks_that_learn_no_more_than_pairs_count_and_the_others_are_told() -> None:
    """The two of the largest losses by far, in the middle of the order of spreads; without them the
    order is whole."""
    stuck = (BLOCKS[4], BLOCKS[7])

    def level(point: SimplificationSettings) -> float:
        gone = point.label in stuck and point.phase == "runs"
        return 5.94 + 0.001 * point.seed if gone else goes_with(ORDER)(point)

    for check in training(rows(level)):
        assert "16 blocks of 6 families" in check.ours
        told = (
            f"without those that do not end 0.3 nats below the bigram table ({stuck[0]} / "
            f"{stuck[1]}): "
        )
        assert told + "Spearman's ρ = +1.00" in check.ours


def test_evenness_of_a_block_that_learns_nothing_is_not_judged() -> None:
    found = checks(
        rows(lambda p: 5.94 if p.label == SIMPLE and p.phase == "runs" else goes_with(ORDER)(p))
    )
    verdicts = [check for fact, check in found.items() if "more even" in fact]
    assert {check.holds for check in verdicts} == {None}
    assert all("sas-p does not end" in check.ours for check in verdicts)


def test_the_first_question_is_named() -> None:
    first = [c.fact for c in checks(rows()).values() if c.expected.startswith("the first question")]
    assert first == [
        f"{SIMPLE} has a more even curvature than {BASE} after training, common matrices",
        "the more uneven the curvature of common matrices after training, the higher the loss",
    ]


def diverged(block: str, *seeds: int) -> Level:
    """As the order is, but for some runs of a block."""

    def level(point: SimplificationSettings) -> float:
        gone = point.label == block and point.phase == "runs" and point.seed in seeds
        return math.inf if gone else goes_with(ORDER)(point)

    return level


def test_a_diverged_block_ranks_last_and_is_named() -> None:
    """The last of the order, so that nothing else changes; once it is lost it has no curvature."""
    found = training(rows(diverged(BLOCKS[-1], 1, 2, 3)))
    assert {check.holds for check in found} == {True}
    for check in found:
        before = "before training" in check.fact
        how = "diverged, so ranked last" if before else "without curvature, so left out"
        assert check.ours.endswith(f"{15 + before} blocks of {5 + before} families; {how}: modern")


def test_a_block_of_which_one_seed_diverges_does_not_rank_by_those_that_survive() -> None:
    """The third of the order, which would keep its place else."""
    one, every = (training(rows(diverged(BLOCKS[2], *seeds))) for seeds in ((2,), (1, 2, 3)))
    assert one[0].ours == every[0].ours  # before training, when all seeds have curvature
    for check in one:
        assert check.ours.endswith(f"diverged, so ranked last: {BLOCKS[2]}")
        assert "ρ = +0.73 [" in check.ours  # 1 − 6 · (13² + 13) / (16 · 255)
        assert "16 blocks" in check.ours


def test_a_moment_without_enough_curvature_is_named_too() -> None:
    """Of two blocks, and of all others before the fourth."""

    def level(point: SimplificationSettings) -> float:
        gone = point.label in BLOCKS[2:] and point.phase == "runs"
        return math.inf if gone else goes_with(ORDER)(point)

    found = [check for check in training(rows(level)) if "before training" not in check.fact]
    assert {check.holds for check in found} == {None}
    left = " / ".join(BLOCKS[2:])
    assert {check.ours for check in found} == {
        f"fewer than three blocks; without curvature, so left out: {left}"
    }


def test_the_table_has_five_moments_of_every_block() -> None:
    table = STUDY.summarise(rows()).tables["unevenness"]
    assert len(table) == 2 * len(SETS) * 5 * 16
    assert {line["share_of_the_steps"] for line in table} == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert {line["seeds"] for line in table} == {3}
    assert set(FAMILY_OF.values()) == set(FAMILIES)


def test_a_point_of_each_phase_is_measured_at_smoke_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a block and of each reference; the whole plan is a slow test."""

    def kind(point: SimplificationSettings) -> object:
        return point.phase, point.label if point.label in (BIGRAMS, GPT2) else ""

    result = run_a_point_of_each_kind(STUDY, kind, tmp_path, monkeypatch, short=True)
    assert False not in {check.holds for check in result.checks}


@pytest.mark.slow
def test_a_run_at_smoke_scale_is_complete_and_drawn(tmp_path: Path) -> None:
    result, figure = run_whole(STUDY, tmp_path)
    assert {check.holds for check in result.checks} == {None}
    assert len(figure.panels) == 10
