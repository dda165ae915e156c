"""Gains, signal and curvature along training: right values, no effect on the run, no row lost or
twice."""

import json
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

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
    ObservationSettings,
    RunSettings,
)
from hessblocks.signal.propagation import propagate
from hessblocks.storage.tables import read_lines
from hessblocks.training.comparison import compare, train
from hessblocks.training.folder import CheckpointWarning
from hessblocks.training.following import gain_values
from tests.training.helpers import MODEL, TRAINING, killed_at_step

SAMPLE = CurvatureSettings(sequences=2, tokens=6, probes=4)
OBSERVED = ObservationSettings(
    gains_every=5,
    signal_every=4,
    curvature_every=6,
    curvature_groups=("query", "layers.1.mlp.*"),
    sample=SAMPLE,
)


def settings(preset: str = "sas-p", observation: ObservationSettings = OBSERVED) -> RunSettings:
    return RunSettings(preset=preset, model=MODEL, training=TRAINING, observation=observation)


def go(corpus: Corpus, out: Path, chosen: RunSettings, progress: Progress | None = None) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(chosen, corpus, out, progress or Progress())
    return out


def lines(out: Path, quantity: str | None = None) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (out / "observations.jsonl").read_text().splitlines()]
    return [line for line in found if quantity in (None, line["quantity"])]


def untimed(out: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines(out)]


def losses(out: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_lines(out / "metrics.jsonl")]


@pytest.fixture(scope="module")
def observed(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go(corpus, tmp_path_factory.mktemp("observed") / "out", settings())


def steps_of(out: Path, quantity: str) -> list[int]:
    return sorted({line["step"] for line in lines(out, quantity)})


def test_each_is_measured_at_its_steps_the_first_and_the_last(observed: Path) -> None:
    assert steps_of(observed, "alpha") == [0, 5, 10, 12]
    assert steps_of(observed, "token_similarity") == [0, 4, 8, 12]
    assert steps_of(observed, "frobenius_norm") == [0, 6, 12]
    keys = Counter(
        tuple(line.get(name) for name in ("step", "quantity", "layer", "group", "role", "part"))
        for line in lines(observed)
    )
    assert set(keys.values()) == {1}


def test_an_observed_run_has_the_losses_of_one_that_is_not(
    corpus: Corpus, observed: Path, tmp_path: Path
) -> None:
    plain = go(corpus, tmp_path / "plain", settings(observation=ObservationSettings()))
    assert losses(plain) == losses(observed)
    assert not (plain / "observations.jsonl").exists()


def test_the_last_lines_are_those_of_the_saved_model(corpus: Corpus, observed: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(observed / "model")
    batch = corpus.curvature_batch(2, 6, seed=0)
    last = [line for line in lines(observed) if line["step"] == 12]
    letters = {"alpha", "beta", "gamma"}
    gains = [line for line in last if line["quantity"].partition("_")[0] in letters]
    for line, expected in zip(gains, gain_values(model), strict=True):
        assert {name: line[name] for name in expected} == expected
    signal = {
        (line["layer"], line["quantity"], line["role"]): line["value"]
        for line in last
        if "role" in line and "group" not in line
    }
    for row in propagate(model, batch, jacobian_steps=0).to_rows():
        key = (None if row["layer"] == "" else row["layer"], row["quantity"], row["role"])
        assert signal.pop(key) == pytest.approx(row["value"], rel=1e-5)
    assert not signal
    norms = [line for line in last if line["quantity"] == "frobenius_norm"]
    names = {"layers.0.attention.query", "layers.1.attention.query"}
    assert {line["group"] for line in norms} == names | {"layers.1.mlp.in", "layers.1.mlp.out"}
    problem = Problem(model, batch, loss="causal-lm")
    group = parameter_groups(model)["layers.1.mlp.out"]
    dense, loss = Hessian(problem, group).dense().norm().item(), problem.value()
    for line in norms:
        if (line["part"], line["group"]) == ("full", group.name):
            assert abs(line["value"] - dense) <= 4 * line["standard_error"]
        assert line["batch_loss"] == pytest.approx(loss, rel=1e-5)


def test_gains_that_a_preset_does_not_have_are_not_there() -> None:
    sizes = {"depth": 2, "width": 8, "heads": 2, "vocab_size": 9, "context": 4}
    assert list(gain_values(hb.build("pre-ln", **sizes))) == []
    found = {line["quantity"] for line in gain_values(hb.build("v-skipinit", **sizes))}
    assert found >= {"alpha", "beta"}


def test_reparametrised_gains_are_named_for_their_weight() -> None:
    config = hb.preset("sas", width=8, heads=2)
    value = hb.blocks.Reparametrised(init="identity", update_gain=0.2, trainable_gains=True)
    config = replace(config, attention=replace(config.attention, first_value=None, value=value))
    model = hb.build(config, depth=2, vocab_size=9, context=4)
    found = [line for line in gain_values(model) if line["quantity"] in ("alpha_V", "beta_V")]
    assert [(line["layer"], line["quantity"], round(line["value"], 6)) for line in found] == [
        (layer, name, value)
        for layer in (0, 1)
        for name, value in (("alpha_V", 1.0), ("beta_V", 0.2))
    ]


def interrupted(corpus: Corpus, out: Path) -> None:
    killed_at_step(lambda progress: go(corpus, out, settings(), progress), 9)
    assert (out / "checkpoints" / "checkpoint-8" / "seal.json").exists()


@pytest.mark.slow
def test_a_killed_run_loses_no_line_and_doubles_none(
    corpus: Corpus, observed: Path, tmp_path: Path
) -> None:
    interrupted(corpus, tmp_path / "out")
    go(corpus, tmp_path / "out", settings())
    assert untimed(tmp_path / "out") == untimed(observed)
    assert losses(tmp_path / "out") == losses(observed)


def lose_a_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


@pytest.mark.slow
def test_lost_lines_of_an_unfinished_run_are_measured_again(
    corpus: Corpus, observed: Path, tmp_path: Path
) -> None:
    interrupted(corpus, tmp_path / "out")
    lose_a_line(tmp_path / "out" / "observations.jsonl")
    with pytest.warns(CheckpointWarning, match=r"observations.jsonl is damaged; training .* start"):
        train(settings(), corpus, tmp_path / "out", Progress())
    assert untimed(tmp_path / "out") == untimed(observed)


def test_damaged_lines_of_a_finished_run_are_named(
    corpus: Corpus, observed: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(observed, tmp_path / "out"))
    path = out / "observations.jsonl"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(RunError, match=r"observations.jsonl: .*is damaged"):
        go(corpus, out, settings())


@pytest.mark.slow
def test_a_block_without_gains_has_none_to_observe(corpus: Corpus, tmp_path: Path) -> None:
    gains = ObservationSettings(gains_every=5)
    compared = ComparisonSettings(
        presets=("pre-ln", "sas-p"),
        model=MODEL,
        training=TRAINING,
        observation=gains,
        curvature=None,
    )
    for _ in range(2):
        compare(compared, corpus, tmp_path, Progress())
    assert {line["preset"] for line in lines(tmp_path)} == {"sas-p"}
    (tmp_path / "runs" / "sas-p-seed0" / "observations.jsonl").write_text("")
    with pytest.raises(RunError, match=r"sas-p-seed0/observations.jsonl: absent or empty"):
        compare(compared, corpus, tmp_path, Progress())


@pytest.mark.slow
def test_bf16_training_is_observed_in_float32(corpus: Corpus, tmp_path: Path) -> None:
    chosen = replace(settings(), training=replace(TRAINING, bf16=True))
    out = go(corpus, tmp_path / "out", chosen)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(out / "model")
    loss = model(**corpus.curvature_batch(2, 6)).loss.item()
    assert lines(out, "batch_loss")[-1]["value"] == pytest.approx(loss, rel=1e-6)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "below": (lambda: ObservationSettings(signal_every=-1), "--signal-every: expected a number"),
    "none": (
        lambda: ObservationSettings(curvature_every=2, curvature_groups=()),
        "--curvature-groups: expected roles",
    ),
    "long": (
        lambda: settings(
            observation=ObservationSettings(signal_every=1, sample=CurvatureSettings(tokens=99))
        ),
        "--curvature-tokens: 99 are longer than the context of 16",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_observed_is_refused(case: str) -> None:
    make, message = CASES[case]
    with pytest.raises(ArgumentError, match=message):
        make()


def test_groups_that_do_not_exist_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    wrong = replace(OBSERVED, curvature_groups=("qery",))
    with pytest.raises(ArgumentError, match=r"--curvature-groups: 'qery' is unknown.*'query'"):
        go(corpus, tmp_path / "out", settings(observation=wrong))
    assert not (tmp_path / "out").exists()
