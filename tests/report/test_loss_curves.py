"""Loss curves: means over seeds as long as all of them train."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from hessblocks.figures import Series
from hessblocks.report import compare_results, comparison_figures
from hessblocks.report.comparison_figures import loss_figure
from hessblocks.storage.folder_results import load_results
from tests.report.folders import Folder, loss


def test_a_mean_curve_ends_where_a_seed_diverged(tmp_path: Path) -> None:
    made = Folder(presets=("pre-ln", "sas"), seeds=(0, 1), layers=1)
    for line in made.metrics:
        if (line["preset"], line["seed"]) == ("sas", 1) and line["step"] >= 100:
            line["loss"] = math.nan
    drawing = loss_figure(compare_results(load_results(made.write(tmp_path))), "steps")
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
    assert loss_figure(replace(comparison, curves=others), "steps") is None


@pytest.mark.parametrize(
    ("device", "unit"), [("cpu", "processor seconds"), ("cuda", "seconds"), (None, "seconds")]
)
def test_training_time_has_the_clock_of_the_run(
    tmp_path: Path, device: str | None, unit: str
) -> None:
    """That of the table's tokens a second; a run of before devices were recorded has none."""
    made = Folder(presets=("sas",), layers=1)
    made.config |= {} if device is None else {"device": device}
    drawing = loss_figure(compare_results(load_results(made.write(tmp_path))), "seconds")
    assert drawing is not None
    assert {panel.x_label.partition("$ ")[2] for panel in drawing.plots} == {f"({unit})"}
    times = {one["step"]: one["seconds"] for one in made.metrics}
    assert drawing.plots[0].series[0].x == pytest.approx(tuple(times.values()))


def test_the_error_of_a_window_is_the_root_mean_square_of_its_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison_figures, "MOST_POINTS", 2)
    errors = (3.0, 4.0, 0.5, 0.5)
    long = Series(name="sas", x=(0, 1, 2, 3), y=(1, 3, 5, 9), error=errors)
    short = comparison_figures._thinned(long, 2)
    assert (short.x, short.y) == ((0.5, 2.5), (2, 7))
    assert short.error == pytest.approx((math.sqrt(12.5), 0.5))
