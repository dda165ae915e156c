"""The ladder of sizes: its points follow from its losses, and what its numbers decide."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hessblocks.data.corpus import Corpus
from hessblocks.storage.tables import Row
from hessblocks_studies.engine import Check
from hessblocks_studies.our_questions import ladder_plan as plan
from hessblocks_studies.our_questions.ladder import STUDY
from hessblocks_studies.shared.differences import Difference, combined, line
from hessblocks_studies.shared.trained_points import LOSS, make_model, whole_loss

Loss = Callable[[plan.LadderSettings], float]
BEST = {"pre-ln": (0.32, -9), plan.BASE: (0.32, -10), "sas": (1.0, -8), "sas-p": (0.56, -6)}
"""Block → gain and quarter at which the losses below are lowest."""


def loss_of(point: plan.LadderSettings) -> float:
    """A bowl around the best start and rate; the lag of sas shrinks, that of sas-p grows."""
    if point.gain is None or point.quarter is None:
        return 3.8
    gain, quarter = BEST[point.variant]
    width, tokens = point.rung
    noise = 0.01 * math.sin(17 * point.seed + 5 * width + 3 * tokens + len(point.variant))
    lag = {"sas": 0.4 * (64 / width) ** 2, "sas-p": 0.1 * width / 64}.get(point.variant, 0.0)
    behind = lag * (tokens == 12)
    return (
        3.0
        + behind
        + noise
        + 0.1 * abs(math.log10((point.gain or 0.32) / gain))
        + (0.02 * (point.quarter - quarter) ** 2)
    )


def rows_of(points: list[plan.LadderSettings], loss: Loss = loss_of) -> list[Row]:
    """The rows of points whose last loss is known."""
    rows: list[Row] = []
    for point in points:
        columns: Row = {
            "block": point.variant, "gain": point.gain, "quarter": point.quarter,
            "width": point.size.width, "tokens_a_parameter": point.tokens_a_parameter,
            "parameters": plan.parameters(point.size), "device": "cpu", "precision": "float32",
            "start": ", ".join(point.slots), "commit": "0123abc", "quantity": LOSS,
        }  # fmt: skip
        last = loss(point)
        values = (7.0, last if math.isfinite(last) else None)
        rows += point.placed(
            [
                {**point.owner, **columns, "step": step, "value": value}
                for step, value in zip((0, point.size.steps), values, strict=True)
            ]
        )
    return rows


def climbed(
    loss: Loss = loss_of, scale: plan.Scale = "laptop", seeds: int | None = None
) -> list[list[plan.LadderSettings]]:
    """The points of each call of `more`, the first ones first, until none follow."""
    batches = [plan.points(scale, seeds)]
    while True:
        there = [point for batch in batches for point in batch]
        batch = plan.more(rows_of(there, loss), there)
        if not batch:
            return batches
        batches.append(batch)


CLIMBED = climbed()
POINTS = [point for batch in CLIMBED for point in batch]
ROWS = rows_of(POINTS)


def checks(rows: list[Row]) -> dict[str, Check]:
    return {check.fact: check for check in STUDY.summarise(rows).checks}


def test_the_parameters_are_those_of_the_model() -> None:
    point = next(p for p in POINTS if p.variant == plan.BASE)
    model = make_model(point)
    assert sum(p.numel() for p in model.parameters()) == plan.parameters(point.size) == 361_280


def test_every_rung_reads_its_tokens_of_a_text_without_tables() -> None:
    for rung in plan.EXTENTS["laptop"].rungs:
        width, tokens = rung
        (size,) = {replace(p.size, learning_rate=1.0) for p in POINTS if p.rung == rung and p.gain}
        read = size.steps * size.batch_size * size.context
        assert read == pytest.approx(tokens * plan.parameters(size), rel=0.01)
        assert size.steps % size.evaluations == 0
        assert size.data == "package:torch+sympy, no tables"
        assert (size.heads, size.mlp_width, size.width) == (4, 4 * width, width)
        assert read < 16e6


def test_all_blocks_try_the_same_gains_and_rates_and_run_at_their_best() -> None:
    tuning = [p for p in POINTS if p.phase == plan.TUNING]
    assert {p.seed for p in tuning} == {0}
    first, *later = plan.EXTENTS["laptop"].rungs
    for block, (gain, quarter) in BEST.items():
        own = [p for p in tuning if p.variant == block]
        assert {p.gain for p in own if p.rung == first} == {0.32, 0.56, 1.0}
        for rung in later:
            quarters = sorted(p.quarter for p in own if p.rung == rung and p.quarter)
            assert quarters == [quarter - 1, quarter, quarter + 1]
            assert {p.gain for p in own if p.rung == rung} == {gain}
    runs = [p for p in POINTS if p.phase == plan.RUNS and p.gain]
    assert {(p.variant, p.gain, p.quarter) for p in runs} == {(b, *at) for b, at in BEST.items()}
    assert {p.seed for p in runs} == {1, 2, 3, 4, 5}
    assert len(runs) == len({(p.label, p.seed) for p in runs}) == 6 * 4 * 5
    assert {p.size.learning_rate for p in runs if p.label == "sas (width 128, 4 tokens)"} == {5e-3}


def test_whole_rungs_end_one_after_another_and_in_the_order_of_the_rule() -> None:
    order = [p.rung for batch in CLIMBED[1:] for p in batch]
    assert [*dict.fromkeys(order)] == [*plan.EXTENTS["laptop"].rungs]
    assert order == sorted(order, key=[*plan.EXTENTS["laptop"].rungs].index)


def test_points_depend_on_losses_alone_and_more_seeds_keep_them() -> None:
    again = {point for batch in climbed(seeds=7) for point in batch}
    assert {*POINTS} < again
    assert {p.seed for p in again - {*POINTS}} == {6, 7}


def test_a_tuning_walks_until_a_worse_rate_is_on_both_sides() -> None:
    assert plan.wanted({}, -8) == [-8, -9, -7]
    assert plan.wanted({-8: 3.0, -9: 2.9, -7: 3.1}, -8) == [-10]
    assert plan.wanted({-8: 3.0, -9: 2.9, -10: 2.95}, -8) == []
    assert plan.wanted({-8: math.inf, -9: math.inf, -7: math.inf}, -8) == [-10]


def test_starts_are_the_gain_over_the_root_of_the_inputs() -> None:
    for block in plan.BLOCKS:
        point = next(p for p in POINTS if p.variant == block and p.gain == 0.56)
        weights = dict(make_model(point).named_parameters())
        expected = {"mlp.input": 64**-0.5, "mlp.output": 256**-0.5, "attention.key": 64**-0.5}
        expected |= {"attention.query": 64**-0.5} if block == "pre-ln" else {}
        expected |= {} if block in plan.JUDGED else {"attention.projection": 64**-0.5}
        for name, std in expected.items():
            (weight,) = (w for n, w in weights.items() if n.endswith(f"layers.1.{name}.weight"))
            assert float(weight.detach().std()) == pytest.approx(0.56 * std, rel=0.05)
        (query,) = (w for n, w in weights.items() if n.endswith("layers.1.attention.query.weight"))
        assert bool(query.any()) == (block == "pre-ln")


class Uniform(nn.Module):
    """A model whose loss is the mean of the tokens it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> object:
        assert not self.training
        return type("Out", (), {"loss": input_ids.double().mean()})()


def test_the_whole_loss_is_of_every_window() -> None:
    corpus = Corpus(
        name="x", tokenizer=None, splits={"validation": np.arange(42, dtype=np.uint16)},
        description={}, fingerprint="",
    )  # fmt: skip
    model = Uniform().train()
    assert whole_loss(model, corpus.windows("validation", 4), together=3) == pytest.approx(
        np.arange(40).mean()
    )
    assert model.training


def test_a_slope_is_that_of_least_squares() -> None:
    gaps = [Difference(mean=m, error=0.01, seeds=5, freedom=20) for m in (0.0, 0.05, 0.02, 0.08)]
    places = [1e5, 3e5, 1e6, 2e6]
    found = line(list(zip(places, gaps, strict=True)))
    slope, cov = np.polyfit(np.log10(places), [g.mean for g in gaps], 1, cov="unscaled")
    assert found.mean == pytest.approx(slope[0])
    assert found.error == pytest.approx(0.01 * math.sqrt(cov[0, 0]))
    assert found.whole_freedom == pytest.approx(20)
    assert line(list(zip(places, gaps, strict=True))[:2]).seeds == 0
    lag = combined([(1.0, gaps[1]), (-1.0, gaps[0])])
    assert (lag.mean, lag.error) == (pytest.approx(0.05), pytest.approx(0.01 * math.sqrt(2)))
    assert lag.whole_freedom == 20
    void = combined([(1.0, gaps[1]), (-1.0, replace(gaps[0], seeds=0, unlike="device"))])
    assert (void.seeds, void.unlike) == (0, "device")
    unlike = [replace(g, error=0.01 * (n + 1), freedom=4 + n, own=True) for n, g in enumerate(gaps)]
    assert line(list(zip(places, unlike, strict=True))).whole_freedom < 4 + 5 + 6 + 7


SHRINKS = "the lag of {} in long training shrinks with size"
BEHIND = "{} falls behind in long training at width 64"
MATCHES = "{} matches pre-ln, zero queries at width 128, {} tokens a parameter"
ALIKE = "every block is tuned alike, to a best rate between two others: width {}, {} tokens"


def test_verdicts_are_two_sided() -> None:
    judged = checks(ROWS)
    assert judged[SHRINKS.format("sas")].holds is True
    assert judged[SHRINKS.format("sas-p")].holds is False
    assert "the 3 widths" in judged[SHRINKS.format("sas")].expected
    assert judged[BEHIND.format("sas")].holds is True
    assert judged[MATCHES.format("sas-p", 4)].holds is True
    assert judged[MATCHES.format("sas-p", 12)].holds is False
    assert all(check.holds for fact, check in judged.items() if fact.startswith(ALIKE[:24]))
    assert len(judged) == 8 + 2 * 6
    ahead = rows_of(POINTS, lambda p: loss_of(p) - 0.8 * (p.variant == "sas" and p.rung[1] == 12))
    assert checks(ahead)[BEHIND.format("sas")].holds is False


def test_gaps_lags_and_the_range_of_a_new_seed_are_listed() -> None:
    lines = STUDY.summarise(ROWS).tables["gaps"]
    (gap,) = (r for r in lines if (r["width"], r["tokens"], r["block"]) == (96, "12", "sas"))
    assert gap["value"] == pytest.approx(0.4 * (64 / 96) ** 2, abs=0.02)
    assert gap["reach_of_one_new_seed"] == pytest.approx(gap["reach"] * math.sqrt(6))
    lags = [(r["width"], r["block"]) for r in lines if r["measure"] == "lag"]
    assert lags == [(w, b) for w in (64, 96, 128) for b in plan.JUDGED]


def planted(rows: list[Row], where: Callable[[Row], bool], **other: object) -> list[Row]:
    """The rows with other columns where a condition holds."""
    assert any(map(where, rows))
    return [{**row, **other} if where(row) else row for row in rows]  # type: ignore[dict-item]


def at_96(row: Row) -> bool:
    return (row["width"], row["tokens_a_parameter"]) == (96, 4)


def grid_of_half_decades(row: Row) -> bool:
    """Rates of sas at one rung, without the ones a quarter of a decade from its best."""
    return row["phase"] == plan.TUNING and row["block"] == "sas" and row["quarter"] != -8


def without(rows: list[Row], where: Callable[[Row], bool]) -> list[Row]:
    assert any(map(where, rows))
    return [row for row in rows if not where(row)]


def test_a_point_on_another_device_voids_its_difference_and_what_rests_on_it() -> None:
    judged = checks(planted(
        ROWS, lambda r: r["variant"] == "sas (width 64, 12 tokens)" and r["seed"] == 2,
        device="cuda", precision="tf32",
    ))  # fmt: skip
    assert judged[BEHIND.format("sas")].holds is None
    assert "void, since the runs differ in device (cpu, cuda)" in judged[BEHIND.format("sas")].ours
    assert judged[SHRINKS.format("sas")].holds is None
    assert judged[SHRINKS.format("sas-p")].holds is False


def test_a_rung_on_another_device_as_a_whole_voids_the_lag() -> None:
    """Each gap is sound, and their difference is not."""
    judged = checks(planted(
        ROWS, lambda r: (r["width"], r["tokens_a_parameter"]) == (64, 12), device="cuda"
    ))  # fmt: skip
    assert "void, since the runs differ in device" in judged[BEHIND.format("sas")].ours
    assert judged[SHRINKS.format("sas")].holds is None


UNFAIR: dict[str, tuple[Callable[[Row], bool], str]] = {
    "another grid of gains": (
        lambda r: r["phase"] == plan.TUNING and (r["block"], r["gain"]) == ("sas", 0.56),
        "sas was tuned over other gains or rates than",
    ),
    "no higher rate": (
        lambda r: r["phase"] == plan.TUNING and r["block"] == "sas" and r["quarter"] == -7,
        "sas has no lower and higher rate beside its best",
    ),
}


@pytest.mark.parametrize("name", UNFAIR)
def test_a_planted_unfairness_turns_its_rungs_void(name: str) -> None:
    where, fault = UNFAIR[name]
    judged = checks(without(ROWS, where))
    control = judged[f"{ALIKE.format(64, 4)} a parameter"]
    assert control.holds is False
    assert fault in control.ours
    for fact in (SHRINKS, BEHIND):
        assert judged[fact.format("sas")].holds is None
    assert judged[MATCHES.format("sas", 4)].holds is None


def test_a_run_at_another_rate_than_the_best_turns_its_rung_void() -> None:
    where = lambda r: r["phase"] == plan.RUNS and at_96(r) and r["block"] == "sas"  # noqa: E731
    judged = checks(planted(ROWS, where, quarter=-9))
    control = judged[f"{ALIKE.format(96, 4)} a parameter"]
    assert (control.holds, control.ours) == (
        False, "elsewhere: sas runs at another start or rate than its best",
    )  # fmt: skip
    assert "the 2 widths" in judged[SHRINKS.format("sas")].expected
    assert judged[SHRINKS.format("sas")].holds is None
    assert judged[BEHIND.format("sas")].holds is True


def test_a_rung_that_has_not_learnt_turns_void() -> None:
    flat = rows_of(POINTS, lambda p: loss_of(p) + 0.6 * (p.rung == (64, 4) and p.gain is not None))
    judged = checks(flat)
    assert judged["pre-ln, zero queries (width 64, 4 tokens) has learnt more than pairs of "
                  "tokens"].holds is False  # fmt: skip
    assert judged[BEHIND.format("sas-p")].holds is None
    assert "does not end 0.3 nats below" in judged[BEHIND.format("sas-p")].ours
    assert judged[SHRINKS.format("sas-p")].holds is None


def test_diverged_rates_are_left_and_a_block_that_diverges_everywhere_is_void() -> None:
    hot = climbed(lambda p: math.inf if (p.quarter or 0) > -9 else loss_of(p))
    quarters = {p.quarter for batch in hot for p in batch if p.phase == plan.RUNS and p.gain}
    assert quarters == {-9, -10}
    lost = [p for batch in climbed(lambda _: math.inf) for p in batch]
    judged = checks(rows_of(lost, lambda p: math.inf if p.gain else 3.8))
    assert judged[f"{ALIKE.format(64, 4)} a parameter"].holds is False
    assert not any(judged[fact.format("sas")].holds for fact in (SHRINKS, BEHIND))


def test_partial_results_are_summarised_too() -> None:
    for count in (0, 10, len(ROWS) // 3, len(ROWS) - 1):
        summary = STUDY.summarise(ROWS[:count])
        assert summary.figure.panels
        rungs = {r["width"] for r in summary.tables["gaps"]}
        assert rungs <= {64, 96, 128}
    facts = [*checks([row for row in ROWS if row["width"] == 64])]
    assert facts[:2] == [BEHIND.format(block) for block in plan.JUDGED]  # no end is there yet
    assert not any("shrinks" in fact or "matches" in fact for fact in facts)
    panels = {panel.title: panel for panel in STUDY.summarise(ROWS).figure.panels}
    assert panels.keys() == {"gap by size", "starts", "tuning"}
    assert {series.name for series in panels["tuning"].series} == {*plan.BLOCKS}


def test_the_setting_of_the_paper_is_a_plan_of_its_own_and_says_what_it_costs() -> None:
    batches = climbed(scale="paper")
    there = [point for batch in batches for point in batch]
    models = [p for p in there if p.gain is not None]
    assert {(p.size.depth, p.size.width, p.size.context, p.size.data) for p in models} == {
        (18, 768, 128, "hub:codeparrot")
    }
    assert all(p.slots == () and p.embedding_std is None for p in models)
    runs = [p for p in models if p.phase == plan.RUNS]
    assert len(runs) == 4 * 3
    read = {p.size.steps * p.size.batch_size * p.size.context for p in runs}
    assert read == {43_000 * 128 * 128}
    tuned = {p.size.steps for p in models if p.phase == plan.TUNING}
    assert tuned == {8_600}
    assert "hours of one H200" in STUDY.costs["paper"]
    facts = checks(rows_of(there))
    assert "sas matches pre-ln, zero queries at width 768, 4.25 tokens a parameter" in facts


def test_a_run_of_the_setting_of_the_paper_is_trained_at_a_small_size(corpus: Corpus) -> None:
    """The same points and the same code, with few layers and steps, on a CPU."""
    for point in plan.points("paper", 1)[:3]:
        small = {"depth": 2, "width": 16, "heads": 2, "mlp_width": 32, "context": 16, "steps": 20}
        small |= {"vocab_size": 260, "batch_size": 2, "evaluations": 2, "evaluation_sequences": 4}
        size = dataclasses.replace(point.size, data=None, **small)
        rows = STUDY.measure(dataclasses.replace(point, size=size))
        assert {*rows[0]} <= {*STUDY.columns}
        losses = [row["value"] for row in rows if row["quantity"] == LOSS]
        assert len(losses) == (2 if point.gain is None else 4)
        if point.gain is not None:
            training = [row["value"] for row in rows if row["quantity"] == "training_loss"]
            assert len(training) == 2
            assert all(0 < loss < 8 for loss in training)
