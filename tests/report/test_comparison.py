"""One comparison, computed once, for whoever tells of a folder."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from hessblocks import report
from hessblocks.cli.terminal import comparison_table
from hessblocks.report import Comparison, compare_results, comparison
from hessblocks.report.comparison_figures import all_figures
from hessblocks.storage import load_results
from tests.report.folders import Folder


def compared(made: Folder, folder: Path) -> Comparison:
    return compare_results(load_results(made.write(folder)))


@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize("presets", [("sas",), ("pre-ln", "sas"), ("sas-p", "mine", "op")])
def test_heterogeneity_is_asked_once_a_block_and_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, presets: tuple[str, ...]
) -> None:
    folder, asked = Folder(presets=presets).write(tmp_path), []
    once = comparison._heterogeneity
    monkeypatch.setattr(
        comparison, "_heterogeneity", lambda rows: asked.append(rows[0]) or once(rows)
    )
    report.write_report(folder)
    assert len(asked) == len({(one.preset, one.stage) for one in asked}) == 2 * len(presets)
    asked.clear()
    found = compare_results(load_results(folder))
    for tell in (report.summary, report.headline, comparison_table):
        tell(found)
    assert len(asked) == 2 * len(presets)


def test_a_comparison_of_a_comparison_is_itself(tmp_path: Path) -> None:
    found = compared(Folder(presets=("sas",)), tmp_path)
    assert compare_results(found) is found
    assert report.summary(found) == report.summary(found.results)
    assert report.headline(found) == report.headline(found.results)


@pytest.mark.parametrize(
    ("presets", "lost"),
    [(("sas",), ("sas",)), (("pre-ln", "op"), ("pre-ln", "op")), (("op", "mine"), ("mine",))],
)
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_seed_that_diverges_at_once_leaves_no_curve_of_its_block(
    tmp_path: Path, presets: tuple[str, ...], lost: tuple[str, ...], loss: float
) -> None:
    made = Folder(presets=presets, seeds=(0, 1), layers=1)
    for line in made.metrics:
        if line["preset"] in lost and line["seed"] == 1:
            line["loss"] = loss
    found = compared(made, tmp_path)
    drawn = {figure.name: figure for figure in all_figures(found)}
    assert ("loss-steps" in drawn) == (presets != lost)
    if presets != lost:
        assert {one.name for panel in drawn["loss-steps"].plots for one in panel.series} == {"op"}
    assert {row.preset for row in found.rows if row.end == 0} == set(lost)


def test_norms_are_means_over_seeds_and_null_where_none_is_finite(tmp_path: Path) -> None:
    made = Folder(presets=("sas",), seeds=(0, 1), layers=1)
    made.change(lambda row: row.update(value=4.0), group="final.norm", seed=0)
    made.change(lambda row: row.update(value=6.0), group="final.norm", seed=1)
    made.change(lambda row: row.update(value="nan"), group="embedding.token", stage="final")
    found = compared(made, tmp_path)
    curvature = report.summary(found)["presets"]["sas"]["curvature"]
    assert curvature["after"]["final.norm"]["full"] == {"value": 5.0, "standard_error": 1.0}
    assert curvature["after"]["embedding.token"]["full"] == {"value": None, "standard_error": None}
    assert curvature["before"]["embedding.token"]["full"]["value"] is not None
    (figure,) = (one for one in all_figures(found) if one.name == "curvature")
    assert [len(panel.series[0].x) for panel in figure.plots] == [11, 10] * 3


@pytest.mark.parametrize("quantity", ["loss", "train", "frobenius", "beta2"])
def test_an_observation_of_another_name_changes_nothing(tmp_path: Path, quantity: str) -> None:
    made = Folder(presets=("sas",), layers=1)
    before = all_figures(compared(made, tmp_path))
    line = {"preset": "sas", "seed": 0, "step": 0, "tokens": 0, "seconds": 0.0, "layer": 0}
    line |= {"quantity": quantity, "value": 1.0}
    (tmp_path / "observations.jsonl").write_text(json.dumps(line) + "\n")
    found = compare_results(load_results(tmp_path))
    assert [one.quantity for one in found.curves if one.preset == "sas"][-1] == quantity
    assert all_figures(found) == before


def test_the_first_that_was_not_finite_is_the_cause(tmp_path: Path) -> None:
    made = Folder(presets=("sas", "mine"), seeds=(0, 3))
    for step, what in ((210, "gradients"), (220, "weights")):
        line = {"preset": "mine", "seed": 3, "step": step, "tokens": 1, "seconds": 25.0}
        made.metrics.append(line | {"split": "train", "loss": None, "diverged": what})
    well, lost = compared(made, tmp_path).rows
    assert (well.causes, well.diverged, well.end) == ({}, (), math.inf)
    assert (lost.causes, lost.diverged, lost.end) == ({3: "gradients"}, (3,), 210)


def test_the_gap_is_the_mean_of_differences_of_equal_seeds_and_steps(tmp_path: Path) -> None:
    made = Folder(presets=("pre-ln", "sas"), seeds=(0, 1), layers=1)
    for line in made.metrics:
        if line["split"] == "validation":
            ahead = (0.1, 0.3)[line["seed"]] if line["preset"] == "sas" else 0.0
            line["loss"] = 5.0 + 2 * line["seed"] - ahead
    gap, *_ = all_figures(compared(made, tmp_path))
    ((line,),) = (panel.series for panel in gap.plots)
    assert (gap.name, line.name) == ("gap", "sas")
    assert line.y == pytest.approx((-0.2,) * len(line.y))
    assert line.error == pytest.approx((0.1,) * len(line.y)), (
        "of the differences, not of the losses"
    )
    assert gap.title.endswith("sas -0.200")


@pytest.mark.parametrize(("every", "whole"), [(40, False), (200, True)])
def test_a_gap_of_few_points_is_whole(tmp_path: Path, every: int, whole: bool) -> None:
    made = Folder(presets=("pre-ln", "sas"), layers=1)
    made.metrics = [line for line in made.metrics if line["step"] % every == 0]
    for line in made.metrics:
        line["loss"] = 5.0 - 2.0 * (line["preset"] == "sas" and line["step"] == 0)
    gap, *_ = all_figures(compared(made, tmp_path))
    ((low, _),) = (panel.limits for panel in gap.plots)
    assert (low < -2) == whole
    assert ("first fifth" in gap.caption) != whole


@pytest.mark.parametrize(("presets", "words"), [(("pre-ln",), "Learning rate: {:g}."), (
    ("pre-ln", "sas"), "Learning rates are not tuned: {:g} for all blocks,")])  # fmt: skip
def test_the_page_tells_the_learning_rate_that_no_column_has(
    presets: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    found = compared(Folder(presets=presets), tmp_path)
    rate = found.rows[0].rate
    assert rate is not None
    assert found.rate_words.startswith(words.format(rate))
    tuned = replace(found, results=replace(found.results, tried=({"rate": rate},)))
    assert "Learning rate" in tuned.rate_words
