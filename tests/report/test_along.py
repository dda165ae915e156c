"""Figures and columns of what was measured along training, from numbers that are known."""

import json
from pathlib import Path
from typing import Any

import pytest

from hessblocks.errors import RunError
from hessblocks.report import Comparison, compare_results
from hessblocks.report.comparison_figures import all_figures
from hessblocks.report.page import write_report
from hessblocks.storage.folder_results import load_results
from tests.report.folders import Folder, row

PRESETS = ("pre-ln", "sas")
ALONG = {"gains", "signal", "curvature-along-steps"}


def observations(seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    found = []
    for preset in PRESETS:
        for seed in seeds:
            for step in (0, 100, 200):
                common = {"preset": preset, "seed": seed, "step": step}
                common |= {"tokens": step * 2048, "seconds": step * 0.1 * (1 + seed)}
                for layer in (0, 1):
                    here = common | {"layer": layer}
                    if preset == "sas":
                        gain = {"quantity": "beta", "value": 1 + layer, "heads": [1.0 + layer]}
                        found.append(here | gain)
                    value = {"quantity": "stable_rank", "value": 3.0 + 2 * layer + seed, "role": ""}
                    found.append(here | value)
                    norm = {"quantity": "frobenius_norm", "role": "query", "part": "full"}
                    norm |= {"group": f"layers.{layer}.attention.query", "method": "estimate"}
                    norm |= {"value": 10.0 * layer, "standard_error": 3.0 + layer}
                    norm |= {"batch_loss": 8 - step / 100}
                    found.append(here | norm)
    return found


def results(folder: Path, seeds: tuple[int, ...] = (0,), **config: object) -> Comparison:
    made = Folder(presets=PRESETS, seeds=seeds)
    made.config |= config
    made.rows += [row(p, s, "flops", 5e8, method="exact") for p in PRESETS for s in seeds]
    made.write(folder)
    lines = "".join(json.dumps(line) + "\n" for line in observations(seeds))
    (folder / "observations.jsonl").write_text(lines)
    return compare_results(load_results(folder))


def points(found: Comparison, name: str, preset: str) -> list[tuple[float, float, float]]:
    (drawing,) = (d for d in all_figures(found) if d.name == name)
    series = [s for panel in drawing.panels for s in panel.series if s.name == preset]
    return list(zip(series[0].x, series[0].y, series[0].error, strict=True)) if series else []


def test_a_folder_without_observations_has_none_of_their_figures(tmp_path: Path) -> None:
    found = load_results(Folder(presets=PRESETS).write(tmp_path))
    assert found.observations == ()
    assert not ALONG & {drawing.name for drawing in all_figures(compare_results(found))}


def test_gains_are_means_over_layers(tmp_path: Path) -> None:
    found = results(tmp_path)
    assert points(found, "gains", "sas") == [(0, 1.5, 0), (100, 1.5, 0), (200, 1.5, 0)]
    assert points(found, "gains", "pre-ln") == []


def test_signal_is_that_of_the_last_layer_with_a_band_over_seeds(tmp_path: Path) -> None:
    assert points(results(tmp_path, (0, 1)), "signal", "sas")[1] == (100, 5.5, pytest.approx(0.5))


def test_curvature_is_the_mean_over_the_groups_of_a_role(tmp_path: Path) -> None:
    found = points(results(tmp_path), "curvature-along-steps", "sas")
    assert found == [(x, 5.0, pytest.approx(2.5)) for x in (0, 100, 200)]  # √(3² + 4²) / 2


def test_seeds_are_aligned_at_their_steps(tmp_path: Path) -> None:
    (curve,) = (
        one
        for one in results(tmp_path, (0, 1)).curves
        if (one.preset, one.quantity) == ("sas", "frobenius_norm")
    )
    assert curve.x == (0, 100, 200)


def test_bands_stay_on_a_logarithmic_axis(tmp_path: Path) -> None:
    found = results(tmp_path)
    (drawing,) = (d for d in all_figures(found) if d.name == "curvature-along-steps")
    ends = [(panel.y_scale, panel.limits) for panel in drawing.plots]
    assert ends
    assert all(scale == "log" and limits and limits[0] > 0 for scale, limits in ends)


@pytest.mark.usefixtures("blank")
def test_the_page_shows_them(tmp_path: Path) -> None:
    folder = results(tmp_path, (0, 1)).results.folder
    text = write_report(folder).read_text()
    assert {f"{name}.png" for name in ALONG | {"gap", "loss-steps"}} <= {
        path.name for path in (folder / "figures").iterdir()
    }
    assert "Curvature along training" in text
    assert "the band is ± 1 standard error of that mean" in text


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    folder = results(tmp_path).results.folder
    path = folder / "observations.jsonl"
    path.write_text(path.read_text().replace('"step": 100', '"step": "x"', 1))
    with pytest.raises(RunError, match=r"observations.jsonl, line \d+: .*; mend or remove it"):
        load_results(folder)


def test_where_a_run_diverged_is_in_the_caption(tmp_path: Path) -> None:
    made = Folder(presets=PRESETS)
    made.metrics.append(
        {"preset": "sas", "seed": 0, "step": 210, "tokens": 1, "seconds": 25.0, "split": "train"}
        | {"loss": None, "diverged": "activations of model.layers.1.mlp (layer 1)"}
    )
    drawings = all_figures(compare_results(load_results(made.write(tmp_path))))
    (drawing,) = (drawing for drawing in drawings if drawing.name == "loss-steps")
    assert "diverged (seed 0: activations of model.layers.1.mlp (layer 1))" in drawing.caption
    assert "sas (diverged at step 210)" in drawing.legend
