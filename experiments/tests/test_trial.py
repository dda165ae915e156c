"""The trial of the simplified blocks: its plan, its verdicts on losses made up here, a run at smoke
scale."""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.tests.smoke_runs import run_a_point_of_each_kind, run_whole
from hessblocks.blocks import BlockConfig
from hessblocks.errors import RunError
from hessblocks.figures.figure import Panel, Series
from hessblocks.storage.tables import Row, Scalar
from hessblocks_studies.engine.study import SCALES, Check, Scale
from hessblocks_studies.fair_trial import trial_plan
from hessblocks_studies.fair_trial.trial import STUDY, measure
from hessblocks_studies.fair_trial.trial_plan import (
    BASE,
    BEST,
    CHOSEN,
    RATES,
    RUNS,
    TrialSettings,
    points,
)
from hessblocks_studies.fair_trial.trial_verdicts import POOR
from hessblocks_studies.shared.differences import Difference
from hessblocks_studies.shared.step_times import STEP_TIME, at_equal_time, bounded, cut_short
from hessblocks_studies.shared.trained_points import BIGRAMS, GPT2, LOSS, make_model
from hessblocks_studies.shared.trained_summary import Runs, late, void_of
from hessblocks_studies.shared.variants import best_start, make_block

PLAN = points("laptop", None)
OF_RUNS = {width: dict(rates) for width, rates in BEST.items()}
"""Rates of the runs, as they stand in the study."""
STARTS_OF_RUNS = dict(CHOSEN[trial_plan.NARROW])
PLACED_FACT = f"sas-p about matches {BASE}, both from 0.02, at equal steps"
GAPS = [f"narrow: runs, above {BASE}", "narrow: runs, one thing changed"]
TITLES = [
    "narrow: tuning",
    "narrow: tuning, sinusoidal positions",
    "wide: tuning",
    "narrow: tuning, initial embeddings",
    "wide: tuning, initial embeddings",
    "narrow: runs",
    *GAPS,
    "wide: runs against time",
    "narrow: positions, as long as the tuning",
]


@pytest.fixture(autouse=True)
def rates_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs at 1e-2 for sas and sas-p and at 3e-3 for all others, all from 0.02, whatever the tuning
    says."""
    for best in BEST.values():
        for label in best:
            quick = label.startswith("sas") and not label.startswith("sas-p-no-norm")
            monkeypatch.setitem(best, label, 1e-2 if quick else 3e-3)
    for starts in CHOSEN.values():
        for block in starts:
            monkeypatch.setitem(starts, block, "")


def test_the_tuning_comes_first_likeliest_rates_before_others() -> None:
    phases = list(dict.fromkeys(point.phase for point in PLAN))
    assert phases == [
        "tuning", "wide tuning", "clock", "wide clock", "slower long", "parts long", "equal long",
        "once long",
        "wide slower long", "wide faster long", "long", "positions", "wide long",
    ]  # fmt: skip
    tuning = [point for point in PLAN if point.phase == "tuning"]
    count = 1 + len(trial_plan.TUNED[trial_plan.NARROW])
    assert [point.label for point in tuning[:count]] == [
        BIGRAMS,
        *trial_plan.TUNED[trial_plan.NARROW],
    ]
    assert [point.size.learning_rate for point in tuning[:12]] == [3e-3] * 12
    verdicts = [point.label in trial_plan.FIRST for point in PLAN if point.phase in RUNS]
    assert verdicts == sorted(verdicts, reverse=True)
    assert {point.seed for point in PLAN if "tuning" in point.phase} == {0}
    assert {point.seed for point in PLAN if "tuning" not in point.phase} == {1, 2, 3}


def test_points_name_their_positions_and_a_key_stays_what_it_was() -> None:
    """The store of the first run has this key; a default that changes must not change it."""
    for point in PLAN:
        kind = "sinusoidal" if point.label.endswith(", sinusoidal") else "rotary"
        own = () if point.variant in (BIGRAMS, GPT2, "all") else (f"position={kind}",)
        assert point.slots[: len(own)] == own, point.name
        small = ("attention.projection.std=0.0057735", "mlp.output.std=0.0057735")
        assert point.slots[len(own) :] == (
            small if point.start == trial_plan.STARTS[trial_plan.SMALL] else ()
        )
    found = next(p for p in STUDY.points("laptop") if p.settings.name == "sas-p at rate 0.01")
    assert json.loads(found.key) == {
        "study": "trial",
        "revision": 1,
        "settings": {
            "study": "trial", "phase": "tuning", "label": "sas-p", "variant": "sas-p", "seed": 0,
            "slots": ["position=rotary"], "learning_rate": 0.01, "tuned": True,
            "depth": 6, "width": 64, "heads": 4, "mlp_width": 256, "context": 64,
            "vocab_size": 1024, "steps": 2400, "batch_size": 16,
            "evaluations": 8, "evaluation_sequences": 256,
        },
    }  # fmt: skip


def test_sizes_are_those_of_the_plan() -> None:
    sizes = trial_plan.SIZES["laptop"]
    found = {name: (size.width, size.heads, size.steps) for name, size in sizes.items()}
    assert found == {
        "tuning": (64, 4, 2400),
        "positions": (64, 4, 2400),
        "long": (64, 4, 8000),
        "wide tuning": (256, 4, 450),
        "wide long": (256, 4, 1500),
    }
    assert all(size.steps % size.evaluations == 0 for size in sizes.values())


@pytest.mark.parametrize("width", trial_plan.WIDTHS)
def test_what_is_run_is_tuned_at_the_rate_of_its_runs_in_a_grid_of_half_decades(width: str) -> None:
    assert set(RATES[width]) == set(OF_RUNS[width]) == set(trial_plan.TUNED[width])
    for label, rates in RATES[width].items():
        assert OF_RUNS[width][label] in rates
        halves = sorted(round(2 * math.log10(rate)) for rate in rates)
        assert halves == list(range(halves[0], halves[0] + len(rates))), label
        assert len(rates) >= 3


Level = Callable[[TrialSettings], float]
"""The final loss of a point."""
FINAL = {BIGRAMS: 3.6, GPT2: 3.2, "v-skipinit": 3.1}


def fair(point: TrialSettings) -> float:
    """Losses of about 3 that are lowest at the rates of the runs, inside every grid; seeds differ a
    little."""
    loss = FINAL.get(trial_plan.taken_apart(point.label)[0], 3.0) + 0.001 * point.seed
    if point.label == BIGRAMS or "tuning" not in point.phase:
        return loss
    middle = BEST[trial_plan.WIDE if point.phase.startswith(trial_plan.WIDE) else ""][point.label]
    return loss + math.log10(point.size.learning_rate / middle) ** 2


def but(level: Level = fair, **more: float) -> Level:
    """The same, with more in some phases for sas; a lower rate changes nothing."""
    if "long" in more:
        more = {"slower_long": more["long"], **more}
    return lambda point: (
        level(point) + (point.label == "sas") * more.get(point.phase.replace(" ", "_"), 0.0)
    )


SECONDS = {"sas": 0.8, "sas-p": 0.5}


def rows(level: Level = fair, plan: list[TrialSettings] | None = None) -> list[Row]:
    """Every point of the plan; a curve falls on a line in the last fifth of its steps, from 0.4
    above its end."""
    return list(_rows(level, with_inner_rates() if plan is None else plan))


def with_inner_rates() -> list[TrialSettings]:
    """The plan, its grids made longer so that the rates of the runs lie inside."""
    with pytest.MonkeyPatch.context() as patch:
        for width in trial_plan.WIDTHS:
            for label, rate in BEST[width].items():
                patch.setitem(RATES[width], label, (rate, rate * 10**0.5, rate / 10**0.5))
        return points("laptop", None)


def _rows(level: Level, plan: list[TrialSettings]) -> Iterator[Row]:
    for point in plan:
        own: Row = {"phase": point.phase, "learning_rate": point.size.learning_rate}
        own["start"] = point.start
        own |= point.owner
        if point.turns:
            for label in point.turns:
                seconds = SECONDS.get(label, 1.0) * (1 + 0.001 * point.seed)
                yield own | {"variant": label, "quantity": STEP_TIME, "value": seconds}
            continue
        end, steps = level(point), point.size.steps
        drop = {0: 3.0, steps * 4 // 5: 0.4, steps: 0.0}
        for step, above in ({0: 0.0, steps: 0.0} if point.label == BIGRAMS else drop).items():
            loss = end + above if math.isfinite(end) else None
            yield own | {"quantity": LOSS, "step": step, "value": loss}


def checks(found: list[Row]) -> dict[str, Check]:
    return {check.fact: check for check in STUDY.summarise(found).checks}


STEPS = f"narrow: sas about matches {BASE} at equal steps"
WIDE_STEPS = f"wide: sas about matches {BASE} at equal steps"


def test_a_fair_trial_of_equal_blocks_is_decided() -> None:
    """In equal time the quick blocks may be better, or alike: the bounds disagree."""
    found = checks(rows())
    open_ = [fact for fact, check in found.items() if check.holds is None]
    assert open_ == [
        f"{width}: {block} about matches {BASE} in equal time"
        for width in ("narrow", "wide")
        for block in ("sas", "sas-p")
    ]
    assert all(check.holds for fact, check in found.items() if fact not in open_)
    assert len(found) == 2 * 10 + 8 + 4 + 3 + 7 + 2 + 2


@pytest.mark.parametrize("more", [-0.1, 0.1])
def test_to_match_is_to_be_neither_worse_nor_better(more: float) -> None:
    found = checks(rows(but(long=more)))
    assert (found[STEPS].holds, found[WIDE_STEPS].holds) == (False, True)
    assert found[STEPS].ours.startswith(f"{more:+.3f} ± 0.001 [")


def test_a_verdict_is_void_where_a_best_rate_is_at_an_end() -> None:
    """That of sas: its grid has no rate above 1e-2, and its verdicts alone are void."""

    def rising(point: TrialSettings) -> float:
        high = point.name == "sas at rate 0.0316228" and point.phase == "tuning"
        return fair(point) - high

    found = checks(rows(rising))
    assert found[STEPS].holds is None
    assert found[STEPS].ours.endswith("void, since the best rate of sas is not inside its grid")
    assert found["narrow: each best rate of the tuning lies inside its grid"].holds is False
    assert found[f"narrow: sas-p about matches {BASE} at equal steps"].holds is True
    assert found[WIDE_STEPS].holds is True


def test_a_verdict_is_void_where_the_runs_are_at_another_rate() -> None:
    with pytest.MonkeyPatch.context() as patch:
        plan = [point for point in with_inner_rates() if "tuning" in point.phase]
        patch.setitem(BEST[""], "sas", 1e-3)
        plan += [point for point in points("laptop", None) if "tuning" not in point.phase]
    found = checks(rows(plan=plan))
    assert found[STEPS].ours.endswith("void, since the runs of sas are not at its best rate, 0.01")
    assert found[STEPS].holds is None
    rates = found["narrow: the runs of each block are at its best rate"]
    assert (rates.holds, rates.ours) == (False, "elsewhere: sas (best 0.01, runs at 0.001)")
    assert found["wide: the runs of each block are at its best rate"].holds is True


def test_the_standard_deviations_of_a_start() -> None:
    found = {point.label: point for point in PLAN if point.phase == "wide tuning"}
    assert [found[BASE + start].embedding_std for start in trial_plan.STARTS] == [
        None,
        1 / 16,
        1 / 16,
    ]
    assert [found[BASE + start].start for start in trial_plan.STARTS] == [
        None, "1/√width", "1/√width, small outputs",
    ]  # fmt: skip
    assert {found[BASE + start].variant for start in trial_plan.STARTS} == {BASE}


def lower(label: str, by: float) -> Level:
    """The same but for the tuning of one block from one start."""
    return lambda point: fair(point) - by * (point.label == label and "tuning" in point.phase)


def test_a_verdict_is_void_where_the_runs_are_not_from_the_best_start() -> None:
    better = rows(lower(BASE + trial_plan.SMALL, 0.05))
    found = checks(better)
    start = found["narrow: the runs of each block are from its best start"]
    assert (start.holds, start.ours) == (False, f"elsewhere: {BASE} (best 1/√width, small outputs)")
    assert found[STEPS].holds is None
    assert found[STEPS].ours.endswith(
        f"void, since the runs of {BASE} are not from its best start, 1/√width, small outputs"
    )
    with pytest.MonkeyPatch.context() as patch:
        for starts in CHOSEN.values():
            patch.setitem(starts, BASE, trial_plan.SMALL)
        plan = with_inner_rates()
    found = checks(rows(lower(BASE + trial_plan.SMALL, 0.05), plan))
    assert (found[STEPS].holds, found[WIDE_STEPS].holds) == (True, True)
    run = next(point for point in plan if (point.label, point.phase) == (BASE, "wide long"))
    assert (run.start, run.embedding_std, run.name) == ("1/√width, small outputs", 1 / 16, BASE)
    assert found[f"rotary positions: {PLACED_FACT}"].holds
    assert found["narrow: the runs of each block are from its best start"].holds is True


@pytest.mark.parametrize(("by", "counts"), [(0.05, True), (0.2, False)])
def test_the_grid_of_a_start_that_is_far_above_the_best_may_stay_short(
    by: float, counts: bool
) -> None:
    """Of sas from 1/√width, whose loss falls to the end of its grid."""

    def rising(point: TrialSettings) -> float:
        one = point.label == "sas" + trial_plan.WIDER and point.phase == "tuning"
        return fair(point) if not one else 3.0 + by - 1e-3 * point.size.learning_rate

    found = checks(rows(rising))
    inside = found["narrow: each best rate of the tuning lies inside its grid"]
    assert inside.holds is not counts
    assert found[STEPS].holds is (None if counts else True)


def test_a_verdict_is_void_where_a_start_was_not_tuned() -> None:
    plan = [point for point in with_inner_rates() if not (point.tuned and point.start)]
    found = checks(rows(plan=plan))
    assert found[STEPS].holds is None
    assert found[STEPS].ours.endswith("void, since 3 of 5 best rates are not inside their grids")
    assert found[f"rotary positions: {PLACED_FACT}"].holds is True


def test_the_starts_of_the_runs_are_the_rule_of_the_other_studies() -> None:
    """Before a test changes them."""
    for block, start in STARTS_OF_RUNS.items():
        assert best_start(block, 64) == (1 / 8 if start else None), block


def test_a_verdict_is_void_where_pre_ln_has_learnt_no_more_than_pairs_of_tokens() -> None:
    def short(point: TrialSettings) -> float:
        return fair(point) - 0.4 * (point.label == BIGRAMS)

    found = checks(rows(short))
    assert found["narrow: pre-ln has learnt more than pairs of tokens"].holds is False
    verdicts = [check for fact, check in found.items() if "about matches" in fact]
    assert len(verdicts) == 16
    assert all(check.holds is None and "void" in check.ours for check in verdicts)


def slots_apart(one: BlockConfig, other: BlockConfig) -> set[str]:
    """The slots of attention in which two blocks differ; they are alike in all else."""
    assert one.replace(attention=other.attention) == other
    return {
        slot
        for slot, value in vars(one.attention).items()
        if value != getattr(other.attention, slot)
    }


def test_one_thing_is_changed_at_a_time() -> None:
    """The rate for one seed; the MLP's width, which gives as many parameters as pre-ln has; values
    and projections; the text."""
    own = {(p.label, p.seed): p for p in PLAN if p.phase == "long"}
    slower, parts, equal, once = (
        [p for p in PLAN if p.phase == phase] for phase in trial_plan.CHANGED
    )
    assert {(p.label, p.seed) for p in slower} == {(b, 1) for b in (BASE, "sas", "sas-p")}
    assert len(equal) == 6
    for point in slower:
        rate = own[point.label, 1].size.learning_rate / 10**0.5
        assert point.size.learning_rate == pytest.approx(rate, rel=0.06)
        size = replace(point.size, learning_rate=own[point.label, 1].size.learning_rate)
        assert replace(point, phase="long", size=size) == own[point.label, 1]
    for point in equal:
        size = replace(point.size, mlp_width=256)
        assert replace(point, phase="long", size=size) == own[point.label, point.seed]
    assert {(p.label, p.seed) for p in once} == {
        (b, seed) for b in (BIGRAMS, BASE, "sas", "sas-p") for seed in (1, 2, 3)
    }
    for point in once:
        assert point.size.data == "package:torch"
        if point.label != BIGRAMS:
            size = replace(point.size, data=None)
            assert replace(point, phase="long", size=size) == own[point.label, point.seed]
    for point in parts:
        like = own["pre-ln" if point.variant == trial_plan.NO_VALUES else "sas", point.seed]
        assert replace(point, phase="long", variant=like.variant, label=like.label) == like
    without, with_values = (
        make_block(name, width=64, heads=4, mlp_width=256)
        for name in (trial_plan.NO_VALUES, trial_plan.VALUES)
    )
    base, sas = (make_block(name, width=64, heads=4, mlp_width=256) for name in ("pre-ln", "sas"))
    assert slots_apart(base, without) == slots_apart(sas, with_values) == {
        "value", "first_value", "projection",
    }  # fmt: skip


@pytest.mark.parametrize("scale", SCALES)
def test_a_wider_mlp_gives_as_many_parameters(scale: Scale) -> None:
    plan = points(scale, 1)
    with torch.device("meta"):
        counts = {
            (p.phase, p.label): sum(each.numel() for each in make_model(p).parameters())
            for p in plan
            if (p.phase, p.label)
            in {("long", BASE), ("equal long", "sas"), ("equal long", "sas-p")}
        }
    base = counts.pop(("long", BASE))
    assert len(counts) == 2
    assert all(0.995 * base < count <= base for count in counts.values())


def test_the_next_rates_at_the_greater_width_are_of_the_same_runs() -> None:
    own = {(p.label, p.seed): p for p in PLAN if p.phase == "wide long"}
    changed = [p for p in PLAN if p.phase in trial_plan.NEIGHBOURS[trial_plan.WIDE]]
    found = {}
    for point in changed:
        like = own[point.label, point.seed]
        size = replace(point.size, learning_rate=like.size.learning_rate)
        assert replace(point, phase=like.phase, size=size) == like
        found[point.phase, point.label] = point.size.learning_rate / like.size.learning_rate
    assert found == {
        **{("wide slower long", block): pytest.approx(0.3, rel=0.12) for block in (BASE, "sas",
            "sas-p", "parallel", "gpt2")},
        **{("wide faster long", block): pytest.approx(3.33, rel=0.12) for block in (BASE,
            "parallel")},
    }  # fmt: skip


@pytest.mark.parametrize("side", ["lower", "higher"])
def test_a_verdict_at_the_greater_width_is_void_where_another_rate_is_better(side: str) -> None:
    phase = {"lower": "wide slower long", "higher": "wide faster long"}[side]
    found = checks(rows(lambda point: fair(point) - 0.03 * (point.phase == phase)))
    control = found[f"wide: {BASE} does not end lower in the runs at the next {side} rate"]
    assert (control.holds, control.ours) == (False, "-0.030 nats")
    assert found[WIDE_STEPS].holds is None
    assert found[WIDE_STEPS].ours.endswith("void, since another rate is better in runs as long")
    assert found[STEPS].holds is True
    early = [point for point in with_inner_rates() if point.phase != phase]
    found = checks(rows(plan=early))
    assert (control.fact in found, found[control.fact].holds) == (True, None)
    assert found[WIDE_STEPS].holds is None


@pytest.mark.parametrize(
    ("block", "better", "holds"),
    [
        ("parallel", None, True),
        ("parallel", "slower", False),
        ("parallel", "faster", False),
        ("sas", None, False),
    ],
)
def test_runs_are_at_their_best_rate_where_none_beside_it_is_better_in_runs_as_long(
    block: str, better: str | None, holds: bool
) -> None:
    """Whatever the short tuning says; of sas, with one side alone, the tuning counts."""
    rate = BEST[trial_plan.WIDE][block]
    grid = tuple(rate * factor for factor in (1, 10**0.5, 10, 10**-0.5))

    def tuned_higher(point: TrialSettings) -> float:
        if point.label != block:
            return fair(point)
        beside = better is not None and point.phase == f"wide {better} long"
        tuned = point.phase == "wide tuning" and point.size.learning_rate == grid[1]
        return fair(point) - 0.1 * beside - 0.5 * tuned

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RATES[trial_plan.WIDE], block, grid)
        own = [point for point in points("laptop", None) if point.label == block]
    plan = [point for point in with_inner_rates() if point.label != block] + own
    found = checks(rows(tuned_higher, plan))["wide: the runs of each block are at its best rate"]
    assert found.holds is holds
    if not holds:
        assert found.ours == f"elsewhere: {block} (best {grid[1]:g}, runs at {rate:g})"


@pytest.mark.parametrize(("by", "counts"), [(0.01, True), (0.03, False)])
@pytest.mark.parametrize("block", ["sas", BASE])
def test_a_verdict_is_void_where_a_lower_rate_is_better_in_the_long_runs(
    block: str, by: float, counts: bool
) -> None:
    def lower(point: TrialSettings) -> float:
        return fair(point) - by * (point.phase == "slower long" and point.label == block)

    found = checks(rows(lower))
    control = found[f"narrow: {block} does not end lower in the runs at the next lower rate"]
    assert (control.holds, control.ours) == (counts, f"{-by:+.3f} nats")
    assert found[STEPS].holds is (True if counts else None)
    if not counts:
        assert found[STEPS].ours.endswith("void, since another rate is better in runs as long")
    others = counts or block == "sas"
    assert found[f"narrow: sas-p about matches {BASE} at equal steps"].holds is (others or None)
    assert found[WIDE_STEPS].holds is True


@pytest.mark.parametrize("more", [-0.1, 0.0, 0.1])
def test_a_block_of_as_many_parameters_is_judged_by_its_own_runs(more: float) -> None:
    found = checks(rows(but(long=0.2, equal_long=more)))
    fact = f"narrow: sas of as many parameters about matches {BASE} at equal steps"
    assert (found[fact].holds, found[fact].ours.split(" ± ")[0]) == (not more, f"{more:+.3f}")
    assert found[STEPS].holds is False
    gaps, changed = STUDY.summarise(rows(but(long=0.2, equal_long=more))).figure.panels[6:8]
    assert isinstance(gaps, Panel)
    ends = {series.name: series.y[-1] for series in gaps.series if not series.guide}
    assert ends == {"pre-ln": 0.0, "sas": pytest.approx(0.2), "sas-p": 0.0}
    assert isinstance(changed, Panel)
    assert {
        series.name: {changed.ticks[int(at)]: end for at, end in zip(series.x, series.y,
            strict=True)}
        for series in changed.series
    } == {
        "pre-ln": {"as tuned": 0.0, "without values": 0.0},
        "sas": {
            "as tuned": pytest.approx(0.2),
            "lower rate": pytest.approx(0.2),
            "with values": 0.0,
            "wider MLP": pytest.approx(more),
            "text read once": 0.0,
        },
        "sas-p": {
            "as tuned": 0.0, "lower rate": 0.0, "wider MLP": 0.0, "text read once": 0.0,
        },
    }  # fmt: skip


def test_verdicts_are_void_where_the_base_is_no_base() -> None:
    """No better than a table of pairs, worse than pre-ln, or without a table to tell."""

    def poor(point: TrialSettings) -> float:
        return 3.56 if point.label == BASE and point.phase == "long" else fair(point)

    def worse(point: TrialSettings) -> float:
        return fair(point) + 0.2 * (point.label == BASE and point.phase == "long")

    without = [row for row in rows() if row["variant"] != BIGRAMS]
    for found, why in (
        (rows(poor), void_of(BASE)),
        (rows(worse), POOR),
        (without, "as its control is"),
    ):
        verdicts = checks(found)
        for fact in (STEPS, f"narrow: sas of as many parameters ends as far above {BASE} as sas"):
            assert verdicts[fact].holds is None
            assert why in verdicts[fact].ours
    assert checks(rows(worse))[WIDE_STEPS].holds is True


@pytest.mark.parametrize("phase", ["equal_long", "once_long"])
@pytest.mark.parametrize(("more", "same"), [(0.1, True), (0.13, True), (0.0, False), (0.2, False)])
def test_whether_a_change_moves_the_gap_is_said(phase: str, more: float, same: bool) -> None:
    found = checks(rows(but(long=0.1, **{phase: more})))
    words = {"equal_long": "of as many parameters", "once_long": "on a text read once"}[phase]
    gap = found[f"narrow: sas {words} ends as far above {BASE} as sas"]
    assert (gap.holds, gap.ours.split(" ± ")[0]) == (same, f"{more - 0.1:+.3f}")


def test_a_text_that_would_be_read_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessblocks_studies.shared.train_point", lambda _: pytest.fail("trained"))
    point = next(p for p in PLAN if p.phase == "once long" and p.label == "sas")
    size = replace(point.size, data=None, steps=8000)
    with pytest.raises(RunError, match=r"tokens to train on, 8,192,000 are read"):
        measure(replace(point, size=size))


@pytest.mark.parametrize("level", [0.0, 1.0])
@pytest.mark.parametrize("more", [0.0, 0.1])
def test_blocks_on_a_text_read_once_are_judged_against_the_base_on_it(
    level: float, more: float
) -> None:
    def own(point: TrialSettings) -> float:
        once = point.phase == "once long"
        return fair(point) + once * (level + more * (point.label == "sas-p"))

    found = checks(rows(own))
    fact = f"narrow: sas-p on a text read once about matches {BASE} at equal steps"
    assert (found[fact].holds, found[fact].ours.split(" ± ")[0]) == (not more, f"{more:+.3f}")
    gap = found[f"narrow: sas-p on a text read once ends as far above {BASE} as sas-p"]
    assert gap.ours.startswith(f"{more:+.3f} ± 0.001 [")
    panel = next(
        panel for panel in STUDY.summarise(rows(own)).figure.panels if panel.title == GAPS[1]
    )
    assert isinstance(panel, Panel)
    place = panel.ticks.index("text read once")
    (series,) = (series for series in panel.series if series.name == "sas-p")
    assert series.y[series.x.index(place)] == pytest.approx(more)


def test_runs_on_a_text_read_once_count_only_where_more_than_pairs_was_learnt() -> None:
    def short(point: TrialSettings) -> float:
        table = point.phase == "once long" and point.label == BIGRAMS
        return fair(point) - 0.5 * table

    found = checks(rows(short))
    verdict = found[f"narrow: sas on a text read once about matches {BASE} at equal steps"]
    assert (verdict.holds, found[STEPS].holds) == (None, True)
    assert verdict.ours.endswith(void_of(BASE))


def test_pre_ln_without_values_is_compared_with_pre_ln() -> None:
    def worse(point: TrialSettings) -> float:
        return fair(point) + 0.2 * (point.label == "pre-ln" and point.phase == "long")

    fact = "narrow: pre-ln without values and projections about matches pre-ln at equal steps"
    found = checks(rows(worse))[fact]
    assert (found.holds, found.ours.split(" ± ")[0]) == (False, "-0.200")


def test_a_base_with_zero_queries_that_is_worse_than_pre_ln_is_said() -> None:
    def worse(point: TrialSettings) -> float:
        return fair(point) + 0.2 * (point.label == BASE and point.phase == "long")

    found = checks(rows(worse))
    assert found[f"narrow: {BASE} is as good a base as pre-ln"].holds is False
    assert found[f"wide: {BASE} is as good a base as pre-ln"].holds is True


def test_positions_that_help_one_block_more_are_said() -> None:
    def helped(point: TrialSettings) -> float:
        return fair(point) + 0.2 * (point.name == f"{BASE}, sinusoidal")

    found = checks(rows(helped))
    assert found[f"rotary positions: {PLACED_FACT}"].holds is True
    assert found[f"sinusoidal positions: {PLACED_FACT}"].holds is False
    assert list(found.values())[-1].holds is False
    assert list(found.values())[-1].ours.startswith("-0.200 ± 0.00")


def runs(table: float = 4.0, **ends: tuple[float, ...]) -> Runs:
    """Curves of 100 steps that fall on a line by 0.4 in the last 20, beside a bigram table; names
    have _ for -."""
    ends[BIGRAMS] = (table,) * 3
    return Runs(
        [
            {"variant": name.replace("_", "-"), "seed": seed, "quantity": LOSS, "step": step,
                "value": loss}
            for name, losses in ends.items()
            for seed, end in enumerate(losses)
            for step, above in ((0, 3.0), (80, 0.4), (100, 0.0))
            for loss in [end + above if math.isfinite(end) or step < 100 else None]
        ]
    )  # fmt: skip


def clock(sas: float, base: float = 1.0, error: float = 0.0) -> dict[str, dict[Scalar, float]]:
    """Three repetitions, each slower than the one before, whose ratio has this standard error."""
    off = error * 3**0.5
    return {
        "sas": {n: (sas + (n - 1) * off) * (1 + n) for n in range(3)},
        "pre-ln": {n: base * (1 + n) for n in range(3)},
    }


def test_the_slower_block_is_cut_short_on_a_line_between_evaluations() -> None:
    found = cut_short(runs(sas=(2.0, 2.1)), "sas", 0.95)
    assert found == {0: pytest.approx(2.1), 1: pytest.approx(2.2)}


@pytest.mark.parametrize(
    ("sas", "share", "holds"),
    [
        ((3.00, 3.00, 3.00), 1.00, True),
        ((3.00, 3.00, 3.00), 0.99, None),  # a clock is good to 2 %, here 0.04 nats
        ((3.00, 3.00, 3.00), 0.90, None),  # between -0.2 and 0
        ((2.90, 2.90, 2.90), 0.90, False),  # better by both bounds
        ((3.40, 3.40, 3.40), 0.90, False),  # worse by both bounds: +0.2 and +0.4
        ((3.10, 3.10, 3.10), 0.90, None),  # better by one, worse by the other
        ((2.90, 3.10, 3.00), 0.99, None),
        ((3.00,), 1.00, None),
        ((math.inf,) * 3, 0.90, False),
    ],
)
def test_in_equal_time_both_bounds_must_agree(
    sas: tuple[float, ...], share: float, holds: bool | None
) -> None:
    found = runs(sas=sas, pre_ln=(3.0, 3.0, 3.0))
    assert at_equal_time(found, clock(share), "sas", "pre-ln").holds is holds


def test_in_equal_time_nothing_is_said_of_runs_that_learnt_no_more_than_pairs() -> None:
    found = runs(table=3.2, sas=(2.9, 2.9, 2.9), pre_ln=(3.0, 3.0, 3.0))
    check = at_equal_time(found, clock(0.9), "sas", "pre-ln")
    assert (check.holds, check.ours.endswith(void_of("pre-ln"))) == (None, True)


def test_a_slower_simplified_block_is_the_one_that_is_cut_short() -> None:
    found = runs(sas=(3.0, 3.0, 3.0), pre_ln=(3.0, 3.0, 3.0))
    check = at_equal_time(found, clock(1.0, 0.9), "sas", "pre-ln")
    assert re.fullmatch(
        r"\+0\.200 ± 0\.036 \[.*\] nats \(3 seeds\) with sas cut short at 90% of its steps, "
        r"\+0\.000 ± 0\.000 \[\+0\.000, \+0\.000\] nats \(3 seeds\) at equal steps",
        check.ours,
    )


def test_the_error_of_the_clocks_counts() -> None:
    found = runs(sas=(2.80, 2.80, 2.80), pre_ln=(3.0, 3.0, 3.0))
    errors = (0.0, 0.005, 0.05)
    sure, surely, unsure = (
        at_equal_time(found, clock(0.99, error=e), "sas", "pre-ln").holds for e in errors
    )
    assert (sure, surely, unsure) == (False, False, None)


def test_an_error_of_three_repetitions_reaches_as_far_as_student_says() -> None:
    """The gap is 0.07, above the limit by 0.02: 1.96 errors of 0.008 are less than that, 4.3 are
    more."""
    assert Difference(mean=0.07, error=0.0, seeds=3, common=0.008).above(0.05) is True
    of_three = Difference(mean=0.07, error=0.0, seeds=3, common=0.008, common_freedom=2)
    assert of_three.above(0.05) is None


def test_a_clock_of_one_repetition_decides_nothing() -> None:
    found = runs(sas=(2.5, 2.5, 2.5), pre_ln=(3.0, 3.0, 3.0))
    once = {name: {1: times[1]} for name, times in clock(0.9).items()}
    assert at_equal_time(found, clock(0.9), "sas", "pre-ln").holds is False
    assert at_equal_time(found, once, "sas", "pre-ln").holds is None


def test_without_clocks_or_runs_nothing_is_said_of_time() -> None:
    found = runs(sas=(3.0, 3.0), pre_ln=(3.0, 3.0))
    for check in (
        at_equal_time(found, {}, "sas", "pre-ln"),
        at_equal_time(runs(pre_ln=(3.0, 3.0)), clock(1.0), "sas", "pre-ln"),
    ):
        assert (check.holds, check.ours) == (None, "not finished")


def test_what_lies_between_bounds() -> None:
    def sure(mean: float) -> Difference:
        return Difference(mean=mean, error=0.0, seeds=3)

    limit = 0.05
    assert bounded([sure(-0.02), sure(0.01)], limit)[0] is True
    assert bounded([sure(-0.2), sure(-0.1)], limit)[0] is False
    assert bounded([sure(0.2), sure(0.1)], limit)[0] is False
    assert bounded([sure(-0.2), sure(0.1)], limit)[0] is None


def test_a_late_panel_has_the_end_of_every_curve_and_the_whole_level() -> None:
    steps = tuple(float(step) for step in range(101))
    curves = [
        Series(name="sas", x=steps, y=steps, error=steps),
        Series(name="lost", x=(0,), y=(1,)),
    ]
    level = Series(name=BIGRAMS, x=(0.0, 100.0), y=(3.0, 3.0))
    panel = Panel(title="", x_label="", y_label="", series=(*curves, level))
    sas, table = late(panel, 0.2).series
    assert (table.x, table.y) == ((20.0, 100.0), (3.0, 3.0))
    assert sas.x == sas.y == sas.error
    assert (min(sas.x) >= 20, max(sas.x), len(sas.x)) == (True, 100.0, 12)


def test_a_rate_at_which_a_seed_diverged_is_left_out_of_the_panel() -> None:
    def lost(point: TrialSettings) -> float:
        return math.inf if point.name == "sas at rate 0.0316228" else fair(point)

    panel = STUDY.summarise(rows(lost)).figure.panels[0]
    assert isinstance(panel, Panel)
    drawn = {series.name: series.x for series in panel.series}
    assert drawn["sas"] == (0.00316228, 0.01)
    assert max(drawn["sas-p"]) == max(drawn[BIGRAMS]) == 0.0316228


@pytest.mark.parametrize("far", [False, True])
def test_a_rate_that_ruins_a_run_does_not_flatten_the_panel(far: bool) -> None:
    """The table at 3.6 and the best of every block stay inside."""

    def ruined(point: TrialSettings) -> float:
        return 7.0 if far and point.name == "sas at rate 0.0316228" else fair(point)

    figure = STUDY.summarise(rows(ruined)).figure
    panel = figure.panels[0]
    assert isinstance(panel, Panel)
    assert figure.to_dict()["panels"][0].get("limits") == panel.limits
    inside = [min(series.y) for series in panel.series]
    if far:
        assert panel.limits
        low, high = panel.limits
        assert low < min(inside) < max(inside) == 3.6 < high < 5.0
    else:
        assert panel.limits is None


@pytest.mark.parametrize("share", [0, 0.05, 0.3, 0.5, 0.7, 0.9])
def test_partial_results_are_summarised_too(share: float) -> None:
    plan = with_inner_rates()
    summary = STUDY.summarise(rows(plan=plan[: int(share * len(plan))]))
    assert json.dumps([summary.to_dict(), summary.figure.to_dict()], allow_nan=False)
    assert [panel.title for panel in summary.figure.panels if panel.title not in TITLES] == []
    assert False not in [check.holds for check in summary.checks]


def test_a_point_of_a_block_and_of_each_reference_is_measured_at_smoke_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kind(point: TrialSettings) -> object:
        if point.phase != "long":
            return None  # one of them stands for all, which are a slow test
        return point.label if point.label in (BIGRAMS, GPT2, BASE) else "another block"

    result = run_a_point_of_each_kind(STUDY, kind, tmp_path, monkeypatch)
    assert False not in {check.holds for check in result.checks}


@pytest.mark.slow
def test_a_point_of_each_phase_is_measured_at_smoke_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a block and of each reference."""

    def kind(point: TrialSettings) -> object:
        return point.phase, point.label if point.label in (BIGRAMS, GPT2) else ""

    result = run_a_point_of_each_kind(STUDY, kind, tmp_path, monkeypatch)
    assert False not in {check.holds for check in result.checks}


@pytest.mark.slow
def test_a_run_at_smoke_scale_is_complete_and_drawn(tmp_path: Path) -> None:
    result, figure = run_whole(STUDY, tmp_path)
    judged = [check for check in result.checks if "end lower in the runs" not in check.fact]
    assert {check.holds for check in judged} == {None}
    assert [panel.title for panel in figure.panels] == TITLES
    for panel in figure.panels:
        assert isinstance(panel, Panel)
        if panel.title not in GAPS:
            assert {BIGRAMS, GPT2} <= {series.name for series in panel.series}, panel.title
