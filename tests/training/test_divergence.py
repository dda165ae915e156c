"""Numbers that stop being finite: found where they do, said, and the run ended in order."""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.data.corpus import Corpus
from hessblocks.progress import Progress
from hessblocks.storage.tables import read_lines, read_results
from hessblocks.training import comparison, preparation
from hessblocks.training.comparison import compare
from hessblocks.training.preparation import build_model
from hessblocks.training.run import DivergenceWarning
from hessblocks.training.trainer import Divergence, located
from tests.training.helpers import COMPARISON, MODEL, TRAINING

NAME = "model.layers.1.mlp.output"


@pytest.fixture
def model(corpus: Corpus) -> nn.Module:
    return build_model(MODEL, "pre-ln", corpus.vocab_size, seed=0)


def test_an_infinite_parameter_is_named_before_what_it_spoils(model: nn.Module) -> None:
    assert located(model, 7, "loss") == Divergence(step=7, words="loss")
    with torch.no_grad():
        model.get_submodule(NAME).weight[0, 0] = math.inf
    words = f"parameters of {NAME}.weight"
    assert located(model, 7, "loss") == Divergence(step=7, words=words, verb="are")


def test_a_last_update_that_spoils_the_weights_ends_as_a_diverged_run(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = torch.optim.AdamW.step

    def spoil(self: torch.optim.AdamW, *given: object, **named: object) -> object:
        done = step(self, *given, **named)
        with torch.no_grad():
            self.param_groups[0]["params"][0].fill_(math.nan)
        return done

    monkeypatch.setattr(torch.optim.AdamW, "step", spoil)
    calm = replace(COMPARISON, presets=("pre-ln",), training=replace(TRAINING, steps=1))
    with pytest.warns(DivergenceWarning, match=r"diverged at step 1: the parameters of model"):
        compare(calm, corpus, tmp_path / "out", Progress())
    run = tmp_path / "out" / "runs" / "pre-ln-seed0"
    assert "parameters of model" in read_lines(run / "metrics.jsonl")[-1]["diverged"]
    assert not (run / "model").exists()
    finals = {
        row.stage: row.value for row in read_results(run / "results.csv") if row.quantity == "loss"
    }
    assert math.isnan(finals["final"])


WILD = replace(
    COMPARISON,
    presets=("pre-ln",),
    training=replace(TRAINING, learning_rate=1e20, clip=1e20, steps=40, warmup=0.05),
)


def test_a_diverging_run_ends_in_order_and_says_where(corpus: Corpus, tmp_path: Path) -> None:
    expected = "pre-ln, seed 0: diverged at step 3: the (loss|gradient norm) is not finite"
    with pytest.warns(DivergenceWarning, match=expected):
        compare(WILD, corpus, tmp_path / "out", Progress())
    run = tmp_path / "out" / "runs" / "pre-ln-seed0"
    lines = read_lines(run / "metrics.jsonl")
    rows = {(row.quantity, row.stage): row.value for row in read_results(run / "results.csv")}
    assert (lines[-1]["step"], lines[-1]["loss"]) == (3, None)
    assert lines[-1]["diverged"] in ("loss", "gradient norm")
    assert lines[0]["loss"] == rows["loss", "initial"]
    assert math.isnan(rows["loss", "final"])
    assert rows["training_time", ""] == lines[-1]["seconds"] > 0
    assert not (run / "model").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(WILD, corpus, tmp_path / "out", Progress())
    assert read_lines(run / "metrics.jsonl") == lines


def test_the_update_of_a_diverged_step_is_not_made(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An infinite gradient in step 4 leaves the finite weights of step 3 alone."""
    seen: list[bool] = []
    step = torch.optim.AdamW.step

    def look(self: torch.optim.AdamW, *given: object, **named: object) -> object:
        done = step(self, *given, **named)
        values = [p for group in self.param_groups for p in group["params"]]
        seen.append(all(bool(p.isfinite().all()) for p in values))
        if len(seen) == 3:
            values[0].register_hook(lambda gradient: gradient * math.inf)
        return done

    monkeypatch.setattr(torch.optim.AdamW, "step", look)
    monkeypatch.setattr(comparison, "_cost", lambda *_: "")  # it makes updates of its own
    calm = replace(COMPARISON, presets=("pre-ln",))
    with pytest.warns(DivergenceWarning, match="diverged at step 4: the gradient norm is"):
        compare(calm, corpus, tmp_path / "out", Progress())
    assert seen == [True] * 4


@pytest.mark.slow
def test_the_other_presets_go_on(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = preparation.build

    def infinite(module: nn.Module, _: object, output: Tensor) -> Tensor:
        return output * math.inf if module.training else output

    def spoilt(blocks: list[hb.BlockConfig], **sizes: Any) -> nn.Module:
        model = build(blocks, **sizes)
        if sizes["name"] == "pre-ln":
            model.get_submodule(NAME).register_forward_hook(infinite)
        return model

    monkeypatch.setattr(preparation, "build", spoilt)
    settings = replace(COMPARISON, model=MODEL, curvature=None)
    with pytest.warns(DivergenceWarning, match="pre-ln, seed 0: diverged at step 1: the loss is"):
        compare(settings, corpus, tmp_path / "out", Progress())
    finals = {
        row.preset: row.value
        for row in read_results(tmp_path / "out" / "results.csv")
        if (row.quantity, row.stage) == ("loss", "final")
    }
    assert math.isnan(finals["pre-ln"])
    assert math.isfinite(finals["sas-p"])
