"""Loss curves: means over seeds as long as all of them train."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from hessblocks.report import compare_results
from hessblocks.report.comparison_figures import loss_figure
from hessblocks.storage.folder_results import load_results
from tests.report.folders import Folder, loss


def test_a_mean_curve_ends_where_a_seed_diverged(tmp_path: Path) -> None:
    made = Folder(presets=("pre-ln", "sas"), seeds=(0, 1), layers=1)
    for line in made.metrics:
        if (line["preset"], line["seed"]) == ("sas", 1) and line["step"] >= 100:
            line["loss"] = math.nan
    drawing = loss_figure(compare_results(load_results(made.write(tmp_path))))
    assert drawing is not None
    held_out = {series.name: series for series in drawing.plots[1].series}
    assert held_out["pre-ln"].x == (0, 40, 80, 120, 160, 200)
    assert held_out["sas"].x == (0, 40, 80)
    mean = 0.05 + (loss(1, 0, 80) + loss(1, 1, 80)) / 2
    assert held_out["sas"].y[-1] == pytest.approx(mean)
    assert "sas (diverged at step 100)" in drawing.legend
    assert "sas diverged (seed 1); its curve ends there" in drawing.caption


def test_without_losses_there_is_no_figure(tmp_path: Path) -> None:
    made = Folder(presets=("sas",), layers=1)
    comparison = compare_results(load_results(made.write(tmp_path)))
    others = tuple(curve for curve in comparison.curves if curve.quantity != "loss")
    others = others or tuple(replace(curve, quantity="gain") for curve in comparison.curves)
    assert others
    assert loss_figure(replace(comparison, curves=others)) is None
