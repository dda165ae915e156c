"""One run against a training loop written out by hand, and what it leaves behind."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hessblocks as hb
from hessblocks.data.corpus import Corpus
from hessblocks.progress import Progress
from hessblocks.settings.run_settings import RunSettings
from hessblocks.storage.tables import ResultRow, read_lines, read_results
from hessblocks.training.folder import RunFolder
from hessblocks.training.preparation import config_of, prepare
from hessblocks.training.run import Run
from hessblocks.training.trainer import ShuffledPasses, spread
from tests.breadth import everyday
from tests.training.helpers import MODEL, SIZES, TRAINING


def settings(preset: str = "sas", **training: object) -> RunSettings:
    return RunSettings(
        preset=preset,
        seed=3,
        model=MODEL,
        training=replace(TRAINING, **training),  # type: ignore[arg-type]
    )


def run(corpus: Corpus, out: Path, chosen: RunSettings) -> tuple[RunFolder, list[ResultRow]]:
    folder = RunFolder(out)
    folder.prepare(config_of(prepare(chosen, corpus), "train"))
    return folder, list(Run(chosen, prepare(chosen, corpus), folder, Progress()).complete())


@pytest.fixture(scope="module")
def finished(
    corpus: Corpus, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunFolder, list[ResultRow]]:
    """A run for all that only look at it."""
    return run(corpus, tmp_path_factory.mktemp("finished") / "out", settings())


def batches(corpus: Corpus, chosen: RunSettings) -> list[torch.Tensor]:
    windows = corpus.windows("train", MODEL.context)
    size = chosen.training.batch_size
    order = list(ShuffledPasses(windows, chosen.training.steps * size, chosen.seed))
    rows = torch.stack([windows[index]["input_ids"] for index in order])
    return list(rows.split(size))


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=tokens).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def by_hand(corpus: Corpus, chosen: RunSettings) -> tuple[torch.nn.Module, list[float]]:
    """AdamW, linear warm-up and decay, clipping, no weight decay of gains: in plain torch."""
    torch.manual_seed(chosen.seed)
    model = hb.build(chosen.preset, vocab_size=corpus.vocab_size, **SIZES)
    training = chosen.training
    gains = ("alpha", "beta", "gamma", "norm", "gain")
    named = list(model.named_parameters())
    decayed = [p for name, p in named if not any(word in name for word in gains)]
    free = [p for name, p in named if any(word in name for word in gains)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    warmup, losses = round(0.05 * training.steps), []
    for step, tokens in enumerate(batches(corpus, chosen)):
        share = (
            step / warmup if step < warmup else (training.steps - step) / (training.steps - warmup)
        )
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * share
        loss = loss_of(model, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize("preset", everyday(["pre-ln", "sas", "sas-p-no-norm"], "sas"))
def test_training_is_the_published_loop(corpus: Corpus, tmp_path: Path, preset: str) -> None:
    chosen = settings(preset, steps=20, log_every=4, evaluate_every=20, checkpoint_every=20)
    folder, _ = run(corpus, tmp_path / "out", chosen)
    model, losses = by_hand(corpus, chosen)
    written = [line["loss"] for line in read_lines(folder.metrics) if line["split"] == "train"]
    assert np.allclose(written, np.reshape(losses, (-1, 4)).mean(1), rtol=1e-5)
    saved = AutoModelForCausalLM.from_pretrained(folder.model).state_dict()
    for name, value in model.state_dict().items():
        assert torch.allclose(saved[name], value, atol=2e-5), name


def test_the_validation_loss_is_the_mean_over_held_out_predictions(
    corpus: Corpus, finished: tuple[RunFolder, list[ResultRow]]
) -> None:
    folder, rows = finished
    model = AutoModelForCausalLM.from_pretrained(folder.model)
    windows = corpus.windows("validation", MODEL.context)
    chosen = spread(len(windows), TRAINING.evaluation_sequences)
    tokens = torch.stack([windows[index]["input_ids"] for index in chosen])
    with torch.no_grad():
        expected = loss_of(model, tokens).item()
    final = [row.value for row in rows if (row.quantity, row.stage) == ("loss", "final")]
    assert final == [pytest.approx(expected, rel=1e-5)]


def test_a_finished_run_has_its_files_and_no_others(
    finished: tuple[RunFolder, list[ResultRow]],
) -> None:
    folder, rows = finished
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "model",
        "results.csv",
    ]
    assert read_results(folder.results) == rows
    assert {(row.quantity, row.stage) for row in rows} == {
        ("parameters", ""),
        ("flops", ""),
        ("loss", "initial"),
        ("loss", "final"),
        ("tokens_per_second", ""),
        ("training_time", ""),
    }
    validation = [m["step"] for m in read_lines(folder.metrics) if m["split"] == "validation"]
    train = [m for m in read_lines(folder.metrics) if m["split"] == "train"]
    assert validation == [0, 5, 10, 12]
    assert [line["step"] for line in train] == [3, 4, 6, 8, 9, 12]
    assert train[-1]["tokens"] == 12 * 4 * 16
    assert all(line["tokens_per_second"] > 0 for line in train)


def test_the_saved_model_generates_text(finished: tuple[RunFolder, list[ResultRow]]) -> None:
    folder, _ = finished
    model = AutoModelForCausalLM.from_pretrained(folder.model)
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    prompt = tokenizer("def ", return_tensors="pt")
    text = tokenizer.decode(model.generate(**prompt, max_new_tokens=4, do_sample=False)[0])
    assert text.startswith("def ")
    assert model.config.use_cache


def test_no_path_user_or_host_is_written_down(
    finished: tuple[RunFolder, list[ResultRow]],
) -> None:
    folder, _ = finished
    for path in (folder.config, folder.environment):
        assert "/" not in path.read_text().replace("python/", "")
    values = json.loads(folder.environment.read_text())
    assert values["packages"]["torch"] == torch.__version__
    assert values["cores"] >= 1
    assert values["memory"] > 2**20


def test_the_order_is_whole_passes_and_differs_by_seed() -> None:
    order = list(ShuffledPasses(range(5), 12, seed=1))
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(5))
    assert len(order) == 12
    assert order[:5] != order[5:10]
    assert order != list(ShuffledPasses(range(5), 12, seed=2))
    assert order == list(ShuffledPasses(range(5), 12, seed=1))


@pytest.mark.parametrize(("size", "count", "expected"), [(10, 3, [0, 3, 6]), (2, 5, [0, 1])])
def test_spread_indices_are_distinct(size: int, count: int, expected: list[int]) -> None:
    assert spread(size, count) == expected
