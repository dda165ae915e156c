"""Models, signal and training on the device; `test_accelerator.py` starts this."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import hessblocks as hb
from hessblocks.data.corpus import Corpus
from hessblocks.data.python_code import load_corpus
from hessblocks.progress import Progress
from hessblocks.settings.run_settings import CurvatureSettings, ObservationSettings, RunSettings
from hessblocks.training.folder import RunFolder
from hessblocks.training.preparation import config_of, prepare
from hessblocks.training.run import Run
from tests.accelerator.alike import NAME, assert_alike, case_on
from tests.data.helpers import write_code
from tests.training.helpers import MODEL, TIMINGS, TRAINING

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
DAILY = {"sas", "sas-p-no-norm", "modern"}
"""Presets that are tried every day; they hold all parts that compute otherwise."""
PRESETS = [
    pytest.param(name, marks=[] if name in DAILY else [pytest.mark.slow]) for name in hb.PRESETS
]
SAMPLE = CurvatureSettings(sequences=2, tokens=6, probes=4)


@pytest.mark.parametrize("preset", PRESETS)
def test_models(preset: str) -> None:
    def measured(device: str) -> Any:
        case = case_on(preset, device)
        batch = {name: tensor.to(device) for name, tensor in case.batches[0].items()}
        with sdpa_kernel(SDPBackend.MATH):  # the only one there is on the device
            output = case.model(**batch, labels=batch["input_ids"])
        output.loss.backward()
        start = batch["input_ids"][:, :2]
        written = case.model.generate(start, max_new_tokens=3, do_sample=False, pad_token_id=0)
        return output.logits, [p.grad for p in case.model.parameters()], written

    assert_alike(measured)


@pytest.mark.parametrize("preset", PRESETS)
def test_signal(preset: str) -> None:
    def measured(device: str) -> Any:
        case = case_on(preset, device)
        labelled = case.batches[0] | {"labels": case.batches[0]["input_ids"]}
        rows = hb.signal(case.model, labelled, jacobian_steps=3).to_rows()
        inverse = [1 / row["value"] for row in rows if "condition" in row["quantity"]]
        return inverse, [row["value"] for row in rows if "condition" not in row["quantity"]]

    assert_alike(measured, 1e-9)


def test_inspection_leaves_a_model_where_it_is(tmp_path: Path) -> None:
    def measured(device: str) -> Any:
        model = case_on("sas", device).model
        tokens = {"input_ids": torch.tensor([[1, 2, 3, 4]])}
        found = hb.measure_curvature(
            model, tokens, out=tmp_path / device, groups=["*.query"], probes=4
        )
        rows = hb.measure_signal(model, tokens, jacobian_steps=0)
        assert model.device.type == device
        norms = [norm.value for parts in found.norms.values() for norm in parts.values()]
        return norms, [row["value"] for row in rows]

    assert_alike(measured, 1e-9)


class StoppedError(Exception):
    """Training was stopped."""


class StopsAt(Progress):
    """Raises at a step."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def step(self, number: int, loss: float) -> None:
        if number == self.last:
            raise StoppedError


@pytest.mark.slow
def test_training_and_going_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with everything observed, stopped behind its second checkpoint and taken up again."""
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # the clock's, off the CPU
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    corpus = load_corpus(write_code(tmp_path / "code"), 260)

    def measured(device: str) -> Any:
        with monkeypatch.context() as patch:
            if device == NAME:
                patch.setenv("ACCELERATE_TORCH_DEVICE", NAME)
            return trained(corpus, tmp_path / device, device)

    assert_alike(measured, 1e-5)


def trained(corpus: Corpus, out: Path, device: str) -> list[float]:
    settings = RunSettings(
        preset="sas",
        model=replace(MODEL, depth=1),
        training=TRAINING,
        curvature=SAMPLE,
        observation=ObservationSettings(
            sample=SAMPLE,
            gains_every=6,
            signal_every=6,
            curvature_every=12,
            curvature_groups=("query",),
        ),
        device=device,
    )
    folder = RunFolder(out)
    folder.prepare(config_of(prepare(settings, corpus), "train"))
    with pytest.raises(StoppedError):
        list(Run(settings, prepare(settings, corpus), folder, StopsAt(9)).complete())
    assert any(folder.checkpoints.iterdir())
    rows = list(Run(settings, prepare(settings, corpus), folder, Progress()).complete())
    lines = [
        json.loads(line)
        for path in (folder.metrics, folder.observations)
        for line in path.read_text().splitlines()
    ]
    values = [line.get("loss", line.get("value")) for line in lines]
    return [*values, *(row.value for row in rows if row.quantity not in TIMINGS)]
