"""The comparison's numbers against arithmetic done here."""

import json
import math
import statistics
from dataclasses import replace

import pytest

from hessblocks.report import compare_results, summary
from hessblocks.statistics import average, ends
from hessblocks.storage.folder_results import load_results
from tests.report.folders import PARTS, Folder, groups, loss, norm


def test_one_seed_gives_its_own_numbers(tmp_path) -> None:
    rows = compare_results(load_results(Folder().write(tmp_path))).rows
    assert [row.preset for row in rows] == list(Folder().presets)
    row = rows[1]
    assert (row.parameters, row.seeds, row.diverged) == (160_000, (0,), ())
    assert row.final_loss.value == pytest.approx(loss(1, 0, 200) + 0.05)
    assert row.final_loss.standard_error is None
    assert row.tokens_per_second.value == 18_200
    assert row.peak_memory.value == 1.15e9


def test_heterogeneity_is_the_largest_over_the_smallest_group_norm(tmp_path) -> None:
    row = compare_results(load_results(Folder().write(tmp_path))).rows[2]
    norms = {
        group: norm(2, place, "final", "full") for place, (group, _, _) in enumerate(groups(2))
    }
    plain = max(norms.values()) / min(norms.values())
    assert row.after.low < row.after.ratio.value < plain < row.after.high  # several share each end
    assert row.after.ratio.standard_error == pytest.approx((row.after.high - row.after.low) / 4)
    same = ends({group: (value, 0.08 * value) for group, value in norms.items()})
    assert row.after.ratio.value == pytest.approx(same.ratio)
    assert (row.after.low, row.after.high) == pytest.approx((same.low, same.high))
    assert norms[row.after.largest] == max(norms.values())
    assert norms[row.after.smallest] == min(norms.values())
    assert row.before.ratio.value > row.after.ratio.value


def test_zero_groups_are_left_out_of_the_ratio_and_named(tmp_path) -> None:
    made = Folder(presets=("sas",))
    whole = compare_results(load_results(made.write(tmp_path / "whole"))).rows[0]
    made.change(
        lambda row: row.update(value=0.0, standard_error=0.0),
        stage="initial",
        group="layers.0.attention.key",
    )
    row = compare_results(load_results(made.write(tmp_path / "zero"))).rows[0]
    assert row.before.zero_groups == ("layers.0.attention.key",)
    assert row.after.zero_groups == ()
    assert math.isfinite(row.before.ratio.value)
    assert row.before.ratio.value == pytest.approx(whole.before.ratio.value)


def test_where_every_group_is_zero_there_is_no_ratio(tmp_path) -> None:
    made = Folder(presets=("sas",))
    made.change(lambda row: row.update(value=0.0), quantity="frobenius_norm", stage="initial")
    assert compare_results(load_results(made.write(tmp_path))).rows[0].before is None


def test_several_seeds_give_mean_and_standard_error(tmp_path) -> None:
    row = compare_results(load_results(Folder(seeds=(0, 1, 2)).write(tmp_path))).rows[0]
    losses = [loss(0, seed, 200) + 0.05 for seed in range(3)]
    assert row.final_loss.value == pytest.approx(statistics.mean(losses))
    assert row.final_loss.standard_error == pytest.approx(statistics.stdev(losses) / math.sqrt(3))
    assert row.final_loss.seeds == 3
    assert row.after.ratio.standard_error == pytest.approx(0, abs=1e-9)  # all seeds scale alike
    assert (row.after.low, row.after.high) == (None, None)  # of one seed alone


def test_a_diverged_seed_is_named_and_left_out_of_the_mean(tmp_path) -> None:
    made = Folder(presets=("sas-p-no-norm",), seeds=(0, 1))
    made.change(lambda row: row.update(value="nan"), quantity="loss", stage="final", seed=1)
    row = compare_results(load_results(made.write(tmp_path))).rows[0]
    assert row.diverged == (1,)
    assert (row.final_loss.seeds, row.final_loss.value) == (
        1,
        pytest.approx(loss(0, 0, 200) + 0.05),
    )


def test_a_norm_that_is_not_finite_is_reported_and_gives_no_ratio(tmp_path) -> None:
    made = Folder(presets=("pre-ln", "sas"))
    place = {"preset": "sas", "stage": "final", "part": "full", "group": "embedding.token"}
    made.change(lambda row: row.update(value="nan"), **place)
    results = load_results(made.write(tmp_path))
    said = (
        "sas, seed 0: frobenius_norm (final full embedding.token) is nan, not a number, and "
        "left out."
    )
    assert results.missing == (said,)
    whole, spoilt = compare_results(results).rows
    assert whole.after is not None
    assert spoilt.before is not None
    assert spoilt.after is None


def test_without_finite_values_there_is_no_mean() -> None:
    assert average([math.nan, math.inf]) is None
    assert average([]) is None


def test_the_summary_is_strict_json_with_the_agreed_keys(tmp_path) -> None:
    made = Folder(presets=("pre-ln", "sas-p"))
    made.change(lambda row: row.update(value="nan"), preset="sas-p", quantity="loss", stage="final")
    results = load_results(made.write(tmp_path))
    value = json.loads(json.dumps(summary(results, seconds=12.5), allow_nan=False))
    assert (value["command"], value["out"], value["seconds"]) == ("compare", str(tmp_path), 12.5)
    preset = value["presets"]["sas-p"]
    assert (preset["final_loss"], preset["diverged"], preset["parameters"]) == (None, [0], 160_000)
    assert set(preset["curvature"]) == {"before", "after"}
    assert set(preset["curvature"]["after"]) == {group for group, _, _ in groups(2)}
    query = preset["curvature"]["after"]["layers.0.attention.query"]
    assert set(query) == set(PARTS)
    place = [group for group, _, _ in groups(2)].index("layers.0.attention.query")
    exact = norm(1, place, "final", "outer")
    assert query["outer"]["value"] == pytest.approx(exact)
    assert query["outer"]["standard_error"] == pytest.approx(0.08 * exact)
    ratio = preset["heterogeneity"]["before"]
    assert 1 < ratio["low"] < ratio["value"] < ratio["high"]
    assert summary(results)["seconds"] == pytest.approx(24 + 22.4)


def test_a_folder_without_results_has_empty_rows(tmp_path) -> None:
    made = Folder(presets=("sas",))
    made.rows, made.metrics = [], []
    results = load_results(made.write(tmp_path))
    (row,) = compare_results(results).rows
    assert (row.parameters, row.final_loss, row.before, row.seeds) == (None, None, None, ())
    assert summary(results)["presets"]["sas"]["curvature"] == {"before": {}, "after": {}}


@pytest.mark.parametrize("last", [math.inf, math.nan])
def test_a_loss_that_is_infinite_or_no_number_has_diverged(tmp_path, last) -> None:
    results = load_results(Folder(presets=("pre-ln", "sas"), seeds=(0, 1)).write(tmp_path))
    spoilt = [
        replace(row, loss=last) if (row.preset, row.seed, row.step) == ("sas", 1, 200) else row
        for row in results.metrics
    ]
    well, lost = compare_results(replace(results, metrics=tuple(spoilt))).rows
    assert (well.diverged, lost.diverged) == ((), (1,))
