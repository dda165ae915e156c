"""The ladder of sizes: its rungs, its starts and rates, and what its numbers decide."""

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
from hessblocks_studies.our_questions.ladder import AXES, STUDY
from hessblocks_studies.shared.differences import Difference, line
from hessblocks_studies.shared.trained_points import LOSS, make_model, whole_loss

PLAN = plan.points("laptop", None)


def test_the_parameters_are_those_of_the_model() -> None:
    point = next(p for p in PLAN if p.variant == plan.BASE and p.size.width == 64)
    model = make_model(point)
    assert sum(p.numel() for p in model.parameters()) == point.parameters == 361_280


def test_every_rung_reads_four_tokens_a_parameter_of_a_text_without_tables() -> None:
    for width in plan.RUNGS["laptop"]:
        size = plan.size_of("laptop", width)
        read = size.steps * size.batch_size * size.context
        assert read == pytest.approx(4 * plan.parameters(size), rel=0.01)
        assert size.steps % size.evaluations == 0
        assert size.data == "package:torch, no tables"
        assert (size.heads, size.mlp_width) == (4, 4 * width)
    most = max(p.size.steps * p.size.batch_size * p.size.context for p in PLAN)
    assert most < 15e6


def test_rates_and_starts_follow_the_width() -> None:
    runs = [p for p in PLAN if p.phase == plan.WIDTHS and p.variant != plan.TABLE]
    assert {p.size.learning_rate * p.size.width for p in runs} == {1e-2 * 64}
    assert {p.seed for p in runs} == {1, 2, 3, 4, 5}
    assert {p.label for p in runs if p.probe} == {p.label for p in runs}
    assert {p.seed for p in runs if p.probe} == {1}
    for point in (
        p for p in PLAN if p.label in ("sas (width 96)", "pre-ln, zero queries (width 96)")
    ):
        weights = dict(make_model(point).named_parameters())
        expected = {"mlp.input": 96**-0.5, "mlp.output": 384**-0.5, "attention.key": 96**-0.5}
        for name, std in expected.items():
            (weight,) = (w for n, w in weights.items() if n.endswith(f"layers.1.{name}.weight"))
            assert float(weight.detach().std()) == pytest.approx(std, rel=0.05)
        (query,) = (w for n, w in weights.items() if n.endswith("layers.1.attention.query.weight"))
        assert not query.any()


def test_the_rates_are_tried_at_three_widths_and_checked_at_the_fourth() -> None:
    tuned = [p for p in PLAN if p.phase == plan.TUNING]
    assert {p.size.width for p in tuned} == {64, 96, 128}
    assert {p.seed for p in tuned} == {0}
    assert len(tuned) == 3 * 3 * 4
    nexts = [p for p in PLAN if p.phase == plan.NEIGHBOURS]
    assert {(p.size.width, round(p.size.learning_rate * 19200, 1)) for p in nexts} == {
        (192, 20.2),
        (192, 202.4),
    }


def test_the_usual_size_is_run_once_and_counts_in_all_three_phases() -> None:
    found = [p for p in PLAN if p.size.width == 64 and p.phase in AXES]
    models = [p for p in found if p.variant != plan.TABLE]
    kinds = [(p.variant, p.seed, p.size.steps, p.size.depth) for p in models]
    assert len(kinds) == len({*kinds}) == 4 * 5 * 7
    usual = [p for p in models if p.also]
    assert {p.phase for p in usual} == {plan.WIDTHS}
    assert len(usual) == 4 * 5
    assert usual[0].also == (
        (plan.TOKENS, plan.at(plan.BASE, "4 tokens a parameter")),
        (plan.DEPTHS, plan.at(plan.BASE, "6 layers")),
    )
    gaps = STUDY.summarise(rows(lambda _: 0.0)).tables["gaps"]
    for phase in AXES:
        assert len({one["rung"] for one in gaps if one["phase"] == phase}) == 4


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
    assert whole_loss(model, corpus, 4, together=3) == pytest.approx(np.arange(40).mean())
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
    unlike = [replace(g, error=0.01 * (n + 1), freedom=4 + n, own=True) for n, g in enumerate(gaps)]
    assert line(list(zip(places, unlike, strict=True))).whole_freedom < 4 + 5 + 6 + 7


def rows(gap: Callable[[int], float]) -> list[Row]:
    """Five seeds on every rung; sas ends above the base by what its width says, others level."""
    found: list[Row] = []
    for point in PLAN:
        size = point.size
        loss = 3.6 if point.variant == plan.TABLE else 3.0
        loss += gap(size.width) * (point.variant == "sas")
        if point.variant != plan.TABLE:
            loss += 0.01 * math.sin(17 * point.seed + 5 * size.width + len(point.label))
        if point.phase == plan.TUNING:
            loss += abs(math.log10(point.size.learning_rate * size.width / 0.64))
        own: Row = {
            **point.owner, "learning_rate": size.learning_rate,
            "tokens_a_parameter": point.tokens_a_parameter, "layers": size.depth,
            "parameters": point.parameters, "quantity": LOSS,
        }  # fmt: skip
        found += [
            {**own, "phase": phase, "variant": name, "step": step, "value": loss}
            for phase, name in ((point.phase, point.name), *point.also)
            for step in (0, size.steps)
        ]
    return found


def checks(found: list[Row]) -> dict[str, Check]:
    return {check.fact: check for check in STUDY.summarise(found).checks}


def test_a_gap_that_grows_with_the_width_is_said() -> None:
    found = checks(rows(lambda width: 0.2 * math.log2(width / 64)))
    grows = "the gap of {} to pre-ln, zero queries grows with parameters of pre-LN"
    assert found[grows.format("sas")].holds is True
    assert found[grows.format("sas-p")].holds is not True
    matches = "sas matches pre-ln, zero queries, widths: width {}"
    assert found[matches.format(64)].holds is True
    assert found[matches.format(128)].holds is False
    assert found["sas-p matches pre-ln, zero queries, depths: 24 layers"].holds is True
    line_ = next(
        one
        for one in STUDY.summarise(rows(lambda _: 0.1)).tables["gaps"]
        if (one["rung"], one["block"]) == ("width 96", "sas")
    )
    assert line_["reach_of_one_new_seed"] == pytest.approx(line_["reach"] * math.sqrt(6))


def test_a_rung_whose_next_rates_are_better_or_unknown_does_not_count() -> None:
    found = rows(lambda width: 0.2 * math.log2(width / 64))
    matches = "sas matches pre-ln, zero queries, widths: width {}"
    grows = "the gap of sas to pre-ln, zero queries grows with parameters of pre-LN"
    at_the_last = "sas (width 192) at rate 0.00105409"
    assert {row["variant"] for row in found if row["phase"] == plan.NEIGHBOURS} >= {at_the_last}
    assert checks(found)[matches.format(192)].holds is False
    assert "the 4 rungs" in checks(found)[grows].expected
    better = [{**row, "value": 1.0} if row["variant"] == at_the_last else row for row in found]
    missing = [row for row in found if row["variant"] != at_the_last]
    for some, holds in ((better, False), (missing, None)):
        judged = checks(some)
        assert judged["the next rates are no better for sas (width 192)"].holds is holds
        assert judged[matches.format(192)].holds is None
        assert judged[matches.format(128)].holds is False
        assert "the 3 rungs" in judged[grows].expected


TUNING = "each best rate of the tuning lies inside its grid, and is that of the runs"


def lower(found: list[Row], by: float, *starts: str) -> list[Row]:
    """The same rows, with lower losses in the tuning of some blocks, widths and rates."""
    chosen = [r for r in found if r["phase"] == plan.TUNING and r["variant"].startswith(starts)]
    assert chosen
    return [{**r, "value": r["value"] - by} if r in chosen else r for r in found]


def test_a_tuning_is_settled_by_all_its_widths() -> None:
    found = rows(lambda _: 0.0)
    assert checks(found)[TUNING].holds is True
    at_96, everywhere = "sas (width 96) at rate 0.02", "at rate {:g}"
    assert checks(lower(found, 0.7, at_96))[TUNING].holds is True
    ends = [f"sas (width {w}) " + everywhere.format(3e-2 * 64 / w) for w in (64, 96, 128)]
    judged = checks(lower(found, 0.7, *ends))[TUNING]
    assert judged.holds is False
    assert judged.ours == "elsewhere: sas (0.03; runs at 0.01)"
    partial = [row for row in found if row["variant"] != f"{at_96}"]
    assert checks(partial)[TUNING].holds is None
    one_width = [r for r in found if r["phase"] != plan.TUNING or "width 128" in r["variant"]]
    assert checks(one_width)[TUNING].holds is None


def test_a_diverged_run_or_rate_decides_nothing_in_its_favour() -> None:
    found = rows(lambda _: 0.0)
    last = "sas (width 192)"
    fact = f"the next rates are no better for {last}"
    lost = [{**r, "value": None} if r["variant"].startswith(last) else r for r in found]
    assert checks(lost)[fact].holds is None
    nexts = [{**r, "value": None} if r["variant"].startswith(f"{last} at") else r for r in found]
    assert checks(nexts)[fact].holds is True
    gaps = STUDY.summarise(lost).tables["gaps"]
    assert [g["gap"] for g in gaps if (g["rung"], g["block"]) == ("width 192", "sas")] == [None]


def test_the_tuning_is_shown_by_block_at_the_width_of_its_rates() -> None:
    panel = STUDY.summarise(rows(lambda _: 0.0)).figure.panels[-1]
    assert panel.title == "tuning"
    assert {series.name for series in panel.series} == {*plan.BLOCKS}
    for series in panel.series:
        assert series.x == pytest.approx([3e-3, 1e-2, 3e-2])
        assert series.y[1] == min(series.y)


def test_a_rung_without_learning_is_not_drawn() -> None:
    def drawn(some: list[Row]) -> list[str]:
        panels = STUDY.summarise(some).figure.panels
        return [str(tick) for panel in panels if "length" in panel.title for tick in panel.ticks]

    found = rows(lambda _: 0.1)
    assert drawn(found) == ["1", "4", "12", "25"]
    base = f"{plan.BASE} (1 tokens a parameter)"
    lost = [{**row, "value": 4.0} if row["variant"] == base else row for row in found]
    assert drawn(lost) == ["4", "12", "25"]


def test_partial_results_are_summarised_too() -> None:
    def seeds(some: list[Row]) -> dict[tuple[object, ...], int]:
        gaps = STUDY.summarise(some).tables.get("gaps", ())
        return {(one["phase"], one["rung"], one["block"]): int(one["seeds"]) for one in gaps}

    whole = rows(lambda _: 0.0)
    every = seeds(whole)
    for count in (0, 10, len(whole) // 2):
        some = seeds(whole[:count])
        assert all(number <= every[place] for place, number in some.items())
        assert sum(some.values()) < sum(every.values())
    assert seeds([]) == {}


def test_a_run_of_the_usual_size_gives_rows_of_all_three_axes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = next(p for p in plan.points("smoke", None) if p.also)
    monkeypatch.setattr(
        "hessblocks_studies.shared.train_point",
        lambda settings, observe, change: [{**settings.owner, "quantity": LOSS, "value": 3.0}],
    )
    found = STUDY.measure(point)
    places = [(row["phase"], row["variant"]) for row in found]
    assert places == [(plan.WIDTHS, point.name), *point.also]
    assert {row["value"] for row in found} == {3.0}
