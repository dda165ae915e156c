"""Masked language models on text of one's own: what is masked, learnt, saved, refused, resumed."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hessblocks.data import MASK, load_corpus
from hessblocks.data.corpus import Corpus
from hessblocks.errors import ArgumentError
from hessblocks.progress import Progress
from hessblocks.settings import CurvatureSettings
from hessblocks.settings.run_settings import RunSettings
from hessblocks.storage import load_results
from hessblocks.storage.tables import read_results
from hessblocks.training.comparison import train
from hessblocks.training.trainer import MASK_SHARE, RunTrainer, held_out, masked_once, masking
from tests.training.helpers import COMPARISON, TRAINING, killed_at_step, numbers

MODEL = COMPARISON.model
SETTINGS = RunSettings(preset="sas-p", model=replace(MODEL, task="masked-lm"), training=TRAINING)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = (
        f"the {a} sees the {b} and the {b} sees the {a}.\n" for a in "abcdefgh" for b in "klmnop"
    )
    path.write_text("".join(lines) * 40)
    return path


@pytest.fixture
def spoken(text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory) -> Corpus:
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path_factory.mktemp("cache")))
    return load_corpus(text, 280, "masked-lm")


def go(
    corpus: Corpus, out: Path, chosen: RunSettings = SETTINGS, progress: Progress | None = None
) -> None:
    train(chosen, corpus, out, progress or Progress())


def test_a_masked_model_is_trained_on_own_text_and_saved(spoken: Corpus, tmp_path: Path) -> None:
    chosen = replace(SETTINGS, training=replace(TRAINING, steps=60, learning_rate=3e-2))
    go(spoken, tmp_path, chosen)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.mask_token == MASK
    assert not model.config.causal
    windows = masked_once(held_out(spoken, chosen), masking(spoken, MODEL.context))
    batch = {name: torch.stack([one[name] for one in windows]) for name in ("input_ids", "labels")}
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"]).logits
    asked = batch["labels"] >= 0
    expected = torch.nn.functional.cross_entropy(logits[asked], batch["labels"][asked]).item()
    (final,) = (
        row.value
        for row in read_results(tmp_path / "results.csv")
        if (row.quantity, row.stage) == ("loss", "final")
    )
    assert final == pytest.approx(expected, rel=1e-4)
    assert final < math.log(spoken.vocab_size) - 1
    assert 0 < load_results(tmp_path).reference < math.log(spoken.vocab_size)


def test_masks_are_drawn_anew_in_training_and_are_a_share(spoken: Corpus) -> None:
    masks, windows = masking(spoken, MODEL.context), spoken.windows("train", MODEL.context)
    torch.manual_seed(0)
    first, second = (masks(windows[k] for k in range(200)) for _ in range(2))
    assert not torch.equal(first["labels"], second["labels"])
    share = (first["labels"] >= 0).double().mean().item()
    assert share == pytest.approx(MASK_SHARE, abs=0.02)
    hidden = first["input_ids"] == spoken.tokenizer.token_to_id(MASK)
    assert (first["labels"][hidden] >= 0).all()
    assert hidden.double().mean().item() == pytest.approx(0.8 * share, abs=0.02)


def test_every_step_hides_other_tokens(
    spoken: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, right = [], RunTrainer.training_step

    def noted(self: RunTrainer, model: torch.nn.Module, inputs: Any, *others: Any) -> torch.Tensor:
        hidden.append(tuple((inputs["labels"] >= 0).flatten().tolist()))
        return right(self, model, inputs, *others)

    monkeypatch.setattr(RunTrainer, "training_step", noted)
    go(spoken, tmp_path)
    assert len(set(hidden)) == len(hidden) >= TRAINING.steps


@pytest.mark.slow
def test_masks_of_a_killed_run_are_those_of_a_whole_one(spoken: Corpus, tmp_path: Path) -> None:
    go(spoken, tmp_path / "whole")
    out = tmp_path / "killed"
    killed_at_step(lambda progress: go(spoken, out, progress=progress), 9)
    assert (out / "checkpoints" / "checkpoint-8" / "seal.json").exists()
    go(spoken, out)
    assert numbers(out) == numbers(tmp_path / "whole")


def test_what_cannot_be_masked_or_measured_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--task: the corpus has no token for what is masked"):
        go(corpus, tmp_path / "out")
    with pytest.raises(ArgumentError, match="--task: masked-lm is for train, without --signal-ev"):
        replace(SETTINGS, curvature=CurvatureSettings(sequences=2, tokens=6, probes=4))
    assert not (tmp_path / "out").exists()
