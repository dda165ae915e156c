"""Optimisers, schedules, bf16, accumulation: against loops written out by hand, and resumed."""

import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hessblocks as hb
from hessblocks.data.corpus import Corpus
from hessblocks.errors import ArgumentError, RunError
from hessblocks.progress import Progress
from hessblocks.settings.run_settings import RunSettings, TrainingSettings
from hessblocks.storage.tables import read_lines
from hessblocks.training.comparison import train
from hessblocks.training.folder import RunFolder
from tests.training.helpers import MODEL, SIZES, TRAINING, killed_at_step
from tests.training.test_run import batches, loss_of


def settings(**training: object) -> RunSettings:
    chosen = {"log_every": 1, "evaluate_every": 12, "checkpoint_every": 4} | training
    return RunSettings(preset="sas", seed=3, model=MODEL, training=replace(TRAINING, **chosen))


def go(corpus: Corpus, out: Path, chosen: RunSettings, progress: Progress | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(chosen, corpus, out, progress or Progress())


def losses(out: Path) -> list[float]:
    return [m["loss"] for m in read_lines(RunFolder(out).metrics) if m["split"] == "train"]


def by_hand(corpus: Corpus, chosen: RunSettings) -> list[float]:
    """The loop in plain torch, for the optimiser, schedule and passes of the settings."""
    torch.manual_seed(chosen.seed)
    model = hb.build(chosen.preset, vocab_size=corpus.vocab_size, **SIZES)
    training, found = chosen.training, []
    decayed = {name: p for name, p in model.named_parameters() if p.ndim >= 2}
    inner = [decayed.pop(name) for name in [*decayed] if ".layers." in name]
    free = [p for p in model.parameters() if p.ndim < 2]
    by_width = training.base_width / MODEL.width if training.rates == "width" else 1.0
    matrices = {"params": inner, "weight_decay": 0.1 / by_width, "share": by_width}
    groups = [
        {"params": [*decayed.values()], "weight_decay": 0.1, "share": 1.0},
        {"params": free, "weight_decay": 0.0, "share": 1.0},
    ]
    if training.optimiser == "sgd":
        optimisers = [torch.optim.SGD([matrices, *groups], lr=1.0, momentum=training.momentum)]
    elif training.optimiser == "muon":
        muon = torch.optim.Muon([matrices], lr=1.0, adjust_lr_fn="match_rms_adamw")
        optimisers = [muon, torch.optim.AdamW(groups, lr=1.0)]
    else:
        optimisers = [torch.optim.AdamW([matrices, *groups], lr=1.0)]
    warmup = round(training.warmup * training.steps)
    for step, tokens in enumerate(batches(corpus, chosen)):
        done = (step - warmup) / (training.steps - warmup)
        falling = (1 + math.cos(math.pi * done)) / 2 if training.schedule == "cosine" else 1 - done
        share = step / warmup if step < warmup else falling
        for group in (group for one in optimisers for group in one.param_groups):
            group["lr"] = training.learning_rate * share * group["share"]
        with torch.autocast("cpu", torch.bfloat16, enabled=training.bf16):
            loss = loss_of(model, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for one in optimisers:
            one.step()
            one.zero_grad()
        found.append(loss.item())
    return found


CASES = {
    "sgd": ({"optimiser": "sgd", "learning_rate": 0.3}, 1e-5),
    "momentum": ({"optimiser": "sgd", "learning_rate": 0.3, "momentum": 0.0}, 1e-5),
    "cosine": ({"schedule": "cosine", "warmup": 0.25, "learning_rate": 1e-2}, 1e-5),
    "bf16": ({"bf16": True, "learning_rate": 1e-2}, 2e-3),
    "muon": ({"optimiser": "muon", "learning_rate": 3e-2}, 1e-3),  # rounds to bfloat16 inside
    "width": ({"rates": "width", "base_width": 64, "learning_rate": 3e-3}, 1e-5),
    "muon by width": (
        {"optimiser": "muon", "rates": "width", "base_width": 32, "learning_rate": 1e-2},
        1e-3,
    ),
    "accumulate": ({"accumulate": 2, "learning_rate": 1e-2}, 1e-5),
}


SELDOM = {"muon", "width", "momentum", "bf16"}
"""Every day the first two are tried as one, `muon by width`, and `sgd` has a momentum."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(one, marks=[pytest.mark.slow] if one in SELDOM else []) for one in CASES],
)
def test_training_is_the_loop_written_out(corpus: Corpus, tmp_path: Path, case: str) -> None:
    options, tolerance = CASES[case]
    chosen = settings(**options)
    go(corpus, tmp_path / "out", chosen)
    expected = by_hand(corpus, chosen)
    assert np.allclose(losses(tmp_path / "out"), expected, rtol=tolerance)
    plain = by_hand(corpus, settings(learning_rate=chosen.training.learning_rate))
    if case != "accumulate":
        assert not np.allclose(losses(tmp_path / "out"), plain, rtol=1e-6)


def test_bf16_leaves_weights_and_files_in_float32(corpus: Corpus, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    go(corpus, tmp_path / "out", settings(bf16=True))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    assert {p.dtype for p in saved.parameters()} == {torch.float32}


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_layers_train_to_the_same_losses(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Each layer is compiled once, and runs compiled in every training step."""
    own, compiled = torch.nn.Module.compile, []

    def compile_and_note(module: torch.nn.Module) -> None:
        own(module, backend=backend)
        compiled.append(module)

    torch.compiler.reset()
    monkeypatch.setattr(torch.nn.Module, "compile", compile_and_note)
    chosen = settings(compile=True, learning_rate=1e-2)
    train(chosen, corpus, tmp_path / "out", Progress())
    assert len(compiled) == SIZES["depth"]
    assert torch._dynamo.utils.counters["frames"]["ok"] >= 1
    assert np.allclose(losses(tmp_path / "out"), by_hand(corpus, chosen), rtol=1e-4)
    restored = RunFolder(tmp_path / "out").model
    assert not any("orig_mod" in name for name in hb.load(restored)[0].state_dict())


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_layers_that_cannot_be_compiled_are_refused_in_a_sentence(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(*_: object) -> None:
        raise ValueError("no compiler")

    own = torch.nn.Module.compile
    torch.compiler.reset()
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: own(module, backend=no_compiler))
    with pytest.raises(RunError, match=r"--compile: torch\.compile failed \(.*no compiler"):
        train(settings(compile=True), corpus, tmp_path / "out", Progress())


@pytest.mark.parametrize(
    "case",
    ["muon", *(pytest.param(n, marks=pytest.mark.slow) for n in ("accumulate", "sgd", "bf16"))],
)
def test_a_killed_run_goes_on_with_the_same_digits(
    corpus: Corpus, tmp_path: Path, case: str
) -> None:
    chosen = settings(**CASES[case][0])
    go(corpus, tmp_path / "whole", chosen)
    out = tmp_path / "killed"
    killed_at_step(lambda progress: go(corpus, out, chosen, progress), 6)
    assert [path.parent.name for path in out.glob("checkpoints/*/seal.json")] == ["checkpoint-4"]
    go(corpus, out, chosen)
    assert losses(out) == losses(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimiser": "adma"}, "--optimiser: 'adma' is unknown; did you mean 'adamw'"),
        ({"schedule": "cosin"}, "--schedule: 'cosin' is unknown; did you mean 'cosine'"),
        ({"momentum": 1.0}, "momentum: expected 0 or more, below 1, got 1.0"),
        ({"optimiser": "sgd", "rates": "width"}, "--rates: rates by width are known for adamw"),
        ({"accumulate": 0}, "--accumulate: expected a whole number of at least 1"),
    ],
)
def test_what_cannot_be_chosen_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TrainingSettings(**options)  # type: ignore[arg-type]


def test_an_update_that_cannot_be_shared_out_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    expected = "--batch-size: 4 sequences cannot be divided evenly among --accumulate 3 passes"
    with pytest.raises(ArgumentError, match=expected):
        go(corpus, tmp_path / "out", settings(accumulate=3))
    assert not (tmp_path / "out").exists()
