"""Run folders: what is read, what is said to be missing, how damage is named."""

import json
import math

import pytest

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.folder_results import load_results
from tests.report.folders import Folder, write_rows


def test_a_whole_folder_is_read_and_nothing_is_missing(tmp_path) -> None:
    made = Folder(seeds=(0, 1))
    results = load_results(made.write(tmp_path))
    assert results.settings.presets == results.presets == made.presets
    assert results.settings.seeds == (0, 1)
    assert results.settings.section("curvature")["probes"] == 16
    assert len(results.metrics) == len(made.metrics)
    assert len(results.measurements) == len(made.rows)
    assert results.missing == ()
    query = results.select("frobenius_norm", group="layers.1.attention.query", part="outer")
    assert {(row.layer, row.role, row.method) for row in query} == {(1, "query", "estimate")}


def test_a_single_run_names_its_preset_and_seed(tmp_path) -> None:
    made = Folder(presets=("sas",), seeds=(3,))
    made.config = {"command": "train", "preset": "sas", "seed": 3}
    results = load_results(made.write(tmp_path))
    assert (results.settings.presets, results.settings.seeds) == (("sas",), (3,))
    assert results.missing == ()


def test_of_a_step_written_twice_the_last_counts(tmp_path) -> None:
    made = Folder(presets=("sas",))
    made.metrics.append({**made.metrics[-1], "loss": 1.25})
    results = load_results(made.write(tmp_path))
    assert len(results.metrics) == len(made.metrics) - 1
    assert results.metrics[-1].loss == 1.25


def test_runs_that_the_comparison_has_not_collected_are_read_in_place(tmp_path) -> None:
    Folder(presets=("pre-ln", "sas")).write(tmp_path)
    both = Folder(presets=("pre-ln", "sas"))
    write_rows(tmp_path / "results.csv", [row for row in both.rows if row["preset"] == "pre-ln"])
    for preset in both.presets:
        inner = Folder(presets=(preset,))
        inner.change(lambda row: row.update(value=99), quantity="parameters")
        inner.write(tmp_path / "runs" / f"{preset}-seed0")
    results = load_results(tmp_path)
    parameters = {row.preset: row.value for row in results.select("parameters")}
    assert parameters == {"pre-ln": 167_000, "sas": 99}
    assert results.missing == ()


def test_what_is_missing_is_reported(tmp_path) -> None:
    made = Folder(presets=("pre-ln", "sas", "sas-p"))
    made.metrics = [line for line in made.metrics if line["preset"] != "sas-p"]
    made.rows = [row for row in made.rows if row["preset"] == "pre-ln" and row["stage"] != "final"]
    made.write(tmp_path)
    (tmp_path / "environment.json").unlink()
    missing = load_results(tmp_path).missing
    assert "environment.json is missing: versions and hardware are unknown." in missing
    assert "pre-ln, seed 0: not finished." in missing
    assert "pre-ln, seed 0: no curvature after training." in missing
    assert "pre-ln, seed 0: no curvature before training." not in missing
    assert "sas-p, seed 0: not started." in missing


def test_a_folder_with_nothing_but_a_config_is_read(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"presets": ["sas"], "seeds": [0]}))
    results = load_results(tmp_path)
    assert (results.metrics, results.measurements) == ((), ())
    assert "sas, seed 0: not started." in results.missing


@pytest.mark.parametrize("folder", ["absent", "."])
def test_another_folder_is_an_argument_error(tmp_path, folder) -> None:
    with pytest.raises(ArgumentError, match="expected a run folder"):
        load_results(tmp_path / folder)


@pytest.mark.parametrize(
    ("file", "text", "where"),
    [
        ("metrics.jsonl", '{"preset": "sas"', "metrics.jsonl, line 3: not JSON"),
        ("metrics.jsonl", "[1, 2]", "metrics.jsonl, line 3: expected a JSON object"),
        ("metrics.jsonl", '{"preset": "sas", "seed": 0}', "line 3: split is missing"),
        ("results.csv", "sas,0,final", "results.csv, line 3: expected as many values"),
        ("results.csv", "sas,0,,loss,,,,,much,,", "line 3: value: expected a number, got 'much'"),
        (
            "results.csv",
            "sas,zero,,loss,,,,,1,,",
            "seed: expected a whole number, got 'zero'",
        ),
    ],
)
def test_a_damaged_line_is_named_by_file_and_number(tmp_path, file, text, where) -> None:
    path = Folder(presets=("sas",)).write(tmp_path) / file
    lines = path.read_text().splitlines()
    lines[2] = text
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=where):
        load_results(tmp_path)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"presets": "sas"}'),
        ("config.json", '{"presets": ["sas"], "seeds": ["x"]}'),
        ("environment.json", "nothing"),
        ("results.csv", "preset,seed\nsas,0\n"),
        ("metrics.jsonl", b"\xff\xfe\x00"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, file, text) -> None:
    path = Folder(presets=("sas",)).write(tmp_path) / file
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RunError, match=file):
        load_results(tmp_path)


@pytest.mark.parametrize("written", ["NaN", "null", "Infinity"])
def test_a_diverged_loss_is_read_as_it_was_written(tmp_path, written) -> None:
    made = Folder(presets=("sas",))
    folder = made.write(tmp_path)
    text = (folder / "metrics.jsonl").read_text().splitlines()
    text.append(
        text[-1].replace('"step": 200', '"step": 210').split('"loss"')[0] + f'"loss": {written}}}'
    )
    (folder / "metrics.jsonl").write_text("\n".join(text))
    assert not math.isfinite(load_results(folder).metrics[-1].loss)


def test_the_half_written_last_line_of_a_killed_run_is_left_out_with_a_warning(tmp_path) -> None:
    made = Folder(presets=("sas",))
    path = made.write(tmp_path) / "metrics.jsonl"
    path.write_text(path.read_text()[:-9])
    with pytest.warns(UserWarning, match="metrics.jsonl: its last line is half-written"):
        assert len(load_results(tmp_path).metrics) == len(made.metrics) - 1


def test_curvature_that_was_not_asked_for_is_not_missing(tmp_path) -> None:
    made = Folder(presets=("sas",))
    made.config["curvature"] = None
    made.rows = [row for row in made.rows if row["quantity"] != "frobenius_norm"]
    assert load_results(made.write(tmp_path)).missing == ()
