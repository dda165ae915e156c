"""What a comparison leaves behind, and what it refuses."""

import json
import math
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hessblocks as hb
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.products.operators import Hessian
from hessblocks.curvature.products.problem import Problem
from hessblocks.data.corpus import Corpus
from hessblocks.errors import ArgumentError, RunError
from hessblocks.progress import Progress
from hessblocks.settings.run_settings import (
    ComparisonSettings,
    CurvatureSettings,
    ModelSettings,
    PresetSizes,
    RunSettings,
    TrainingSettings,
)
from hessblocks.storage.config import EnvironmentWarning
from hessblocks.storage.tables import read_results
from hessblocks.training.comparison import compare
from hessblocks.training.folder import claimed
from hessblocks.training.preparation import config_of, prepare, resolve_device
from tests.training.helpers import COMPARISON, MODEL, SIZES, TRAINING, complete, files, numbers

UNMAPPED = replace(COMPARISON, curvature=None)


def test_the_comparison_gathers_its_runs(undisturbed: Path) -> None:
    losses, rows = numbers(undisturbed)
    of_runs = [numbers(undisturbed / "runs" / f"{name}-seed0") for name in COMPARISON.presets]
    assert losses == of_runs[0][0] + of_runs[1][0]
    assert rows == of_runs[0][1] + of_runs[1][1]
    config = json.loads((undisturbed / "config.json").read_text())
    assert config["presets"] == ["pre-ln", "sas-p"]
    assert config["model"]["vocab_size"] == 260
    assert not [name for name in files(undisturbed) if "checkpoint" in name or "partial" in name]


def test_the_initial_norms_are_those_of_the_dense_hessian(
    corpus: Corpus, undisturbed: Path
) -> None:
    torch.manual_seed(0)
    model = hb.build("sas-p", vocab_size=corpus.vocab_size, **SIZES | {"depth": 1})
    batch = corpus.curvature_batch(2, 6, seed=0)
    group = parameter_groups(model)["layers.0.mlp.out"]
    dense = Hessian(Problem(model, batch), group).dense().norm().item()
    (row,) = (
        row
        for row in read_results(undisturbed / "results.csv")
        if (row.preset, row.stage, row.group, row.part)
        == ("sas-p", "initial", "layers.0.mlp.out", "full")
    )
    assert (row.layer, row.role, row.method) == (0, "mlp_out", "estimate")
    assert abs(row.value - dense) <= 3 * row.standard_error


def test_curvature_differs_before_and_after_training(undisturbed: Path) -> None:
    rows = read_results(undisturbed / "results.csv")
    norms = {
        stage: [
            row.value for row in rows if row.quantity == "frobenius_norm" and row.stage == stage
        ]
        for stage in ("initial", "final")
    }
    assert len(norms["initial"]) == len(norms["final"]) > 50
    assert norms["initial"] != norms["final"]
    assert all(math.isfinite(value) for values in norms.values() for value in values)


def test_seeds_and_presets_see_the_same_held_out_loss_split(undisturbed: Path) -> None:
    rows = read_results(undisturbed / "results.csv")
    assert {row.preset for row in rows} == {"pre-ln", "sas-p"}
    assert {row.seed for row in rows} == {0}


def test_other_settings_in_the_same_folder_are_named(corpus: Corpus, undisturbed: Path) -> None:
    other = replace(COMPARISON, training=replace(TRAINING, steps=13), seeds=(1,))
    before = {path: (undisturbed / path).read_bytes() for path in files(undisturbed)}
    with pytest.raises(ArgumentError) as caught:
        compare(other, corpus, undisturbed, Progress())
    assert "--out" in str(caught.value)
    assert "training.steps is 13, was 12" in str(caught.value)
    assert "seeds is [1], was [0]" in str(caught.value)
    assert {path: (undisturbed / path).read_bytes() for path in files(undisturbed)} == before


def test_a_folder_with_something_else_is_left_alone(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ArgumentError, match=r"--out: .* is not empty and holds no run"):
        complete(corpus, tmp_path)
    assert [name for name in files(tmp_path) if not name.startswith(".")] == ["thesis.tex"]


def test_a_file_in_the_place_of_the_folder_is_named(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(RunError, match=r"--out: .* cannot be written"):
        complete(corpus, tmp_path / "out")


def test_two_processes_never_write_to_the_same_folder(corpus: Corpus, tmp_path: Path) -> None:
    config = config_of(prepare(COMPARISON, corpus), "compare")
    with claimed(tmp_path / "out", config), pytest.raises(RunError, match="in use by process"):  # noqa: SIM117
        with claimed(tmp_path / "out", config):
            pass


@pytest.mark.slow
def test_other_versions_are_reported(corpus: Corpus, tmp_path: Path) -> None:
    config = config_of(prepare(UNMAPPED, corpus), "compare")
    run = UNMAPPED.runs()[0]
    with claimed(tmp_path / "out", config) as folder:
        own = folder.run(run.preset, run.seed)
        own.prepare(config_of(prepare(run, corpus), "compare"))
        values = json.loads(own.environment.read_text())
    values["packages"]["torch"] = "1.0"
    own.environment.write_text(json.dumps(values))
    with pytest.warns(EnvironmentWarning, match=r"packages.torch is .* was '1.0'"):
        compare(UNMAPPED, corpus, tmp_path / "out", Progress())
    with warnings.catch_warnings():  # of a finished run there is nothing to say
        warnings.simplefilter("error", EnvironmentWarning)
        compare(UNMAPPED, corpus, tmp_path / "out", Progress())
    assert json.loads(own.environment.read_text()) == values


def test_a_damaged_table_is_named(corpus: Corpus, undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "out")
    path = tmp_path / "out" / "runs" / "sas-p-seed0" / "results.csv"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(RunError, match=r"results.csv, line \d+: .*; mend or remove it"):
        complete(corpus, tmp_path / "out")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ComparisonSettings(presets=()), "--presets: expected one or more"),
        (lambda: ComparisonSettings(presets=("sas", "sas")), "--presets: .* each once"),
        (lambda: ComparisonSettings(presets=("sas",), seeds=()), "--seeds"),
        (
            lambda: ComparisonSettings(
                presets=("sas",),
                model=ModelSettings(context=8),
                curvature=CurvatureSettings(tokens=9),
            ),
            "--curvature-tokens: 9 are longer than the context of 8",
        ),
        (lambda: RunSettings(preset="sas", seed=-1), "--seed: expected 0 or more, got -1"),
        (lambda: TrainingSettings(steps=0), "--steps: expected a whole number of at least 1"),
        (lambda: TrainingSettings(learning_rate=math.nan), "--learning-rate: .* above 0, got nan"),
        (lambda: TrainingSettings(learning_rate=-1.0), "learning-rate"),
        (lambda: TrainingSettings(warmup=1.5), "warmup"),
        (lambda: TrainingSettings(weight_decay=-0.1), "weight-decay"),
        (lambda: CurvatureSettings(probes=0), "--curvature-probes"),
        (lambda: replace(MODEL, depth=0), "--depth: expected a whole number of at least 1, got 0"),
        (lambda: PresetSizes(vocab_size=0), "--vocab-size: expected a whole number of at least 1"),
        (lambda: resolve_device("tpu"), "--device: expected auto, cpu or cuda, got 'tpu'"),
    ],
)
def test_settings_outside_their_range_are_refused(make: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without cuda")
def test_a_missing_device_is_named() -> None:
    assert resolve_device("auto") == "cpu"
    with pytest.raises(ArgumentError, match="--device: this machine has no usable cuda"):
        resolve_device("cuda")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"presets": ("sass",)}, "preset: 'sass' is unknown; did you mean 'sas'"),
        ({"model": replace(MODEL, heads=3)}, "heads: 3 heads do not divide the width 16"),
        ({"model": replace(MODEL, context=10**6)}, "--data: .* fewer than one context"),
        ({"curvature": CurvatureSettings(sequences=10**6, tokens=6)}, "--curvature-sequences"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    corpus: Corpus, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        complete(corpus, tmp_path / "out", replace(COMPARISON, **change))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
