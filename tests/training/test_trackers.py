"""What a run notes also reaches the tracker that the Trainer reports to; stubs stand for the
packages."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hessblocks.data.corpus import Corpus
from hessblocks.errors import ArgumentError
from hessblocks.progress import Progress
from hessblocks.settings.run_settings import RunSettings
from hessblocks.training.comparison import compare, train
from hessblocks.training.recorder import Recorder
from tests.training.helpers import COMPARISON, TRAINING, numbers

MODEL = COMPARISON.model

WRITER = """
import json, pathlib
class SummaryWriter:
    def __init__(self, log_dir):
        self.path = pathlib.Path(log_dir); self.path.mkdir(parents=True)
    def add_text(self, *given): pass
    def add_scalar(self, name, value, step):
        with (self.path / "events").open("a") as file:
            file.write(json.dumps([name, value, step]) + "\\n")
    def flush(self): pass
    def close(self): pass
"""


def losses(folder: Path, split: str) -> list[tuple[int, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines if line["split"] == split]


def test_tensorboard_gets_the_losses_and_changes_no_digit(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages" / "tensorboardX").mkdir(parents=True)
    (tmp_path / "packages" / "tensorboardX" / "__init__.py").write_text(WRITER)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    plain = RunSettings(preset="sas-p", model=MODEL, training=TRAINING)
    told = RunSettings(preset="sas-p", model=MODEL, training=TRAINING, report_to="tensorboard")
    train(plain, corpus, tmp_path / "plain", Progress())
    train(told, corpus, tmp_path / "told", Progress())
    assert numbers(tmp_path / "told") == numbers(tmp_path / "plain")
    (events,) = (tmp_path / "told").rglob("events")
    scalars = [json.loads(line) for line in events.read_text().splitlines()]
    for split, name in (("train", "train/loss"), ("validation", "eval/loss")):
        sent = [(step, value) for one, value, step in scalars if one == name]
        assert sent == losses(tmp_path / "told", split)
    train(plain, corpus, tmp_path / "told", Progress())  # a tracker is no setting of the run


class Wandb(ModuleType):
    """Remembers the runs that were begun and ended, and what each was told."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.run: Any = None
        self.runs: list[Any] = []
        self.config = type("Config", (dict,), {"update": lambda *_, **__: None})()

    def init(self, **given: Any) -> None:
        self.run = SimpleNamespace(
            name=given["name"], told=[], ended=False, summary={}, id="1", _label=lambda **_: None
        )
        self.runs.append(self.run)

    def log(self, values: dict[str, float]) -> None:
        self.run.told.append(values)

    def finish(self) -> None:
        self.run.ended = True
        self.run = None


def installed(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    stub = Wandb()
    config = ModuleType("wandb.sdk.lib.config_util")
    config.ConfigError = RuntimeError  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "transformers.integrations.integration_utils.is_wandb_available", lambda: True
    )
    for name, module in (
        ("wandb", stub),
        ("wandb.sdk", ModuleType("wandb.sdk")),
        ("wandb.sdk.lib", ModuleType("wandb.sdk.lib")),
        ("wandb.sdk.lib.config_util", config),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return stub


@pytest.mark.slow
def test_each_run_of_a_comparison_is_one_of_wandb(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Trainer leaves a run open; the next one would go on in it, its steps beginning again."""
    stub = installed(monkeypatch)
    settings = replace(COMPARISON, curvature=None, report_to="wandb")
    compare(settings, corpus, tmp_path / "out", Progress())
    assert [one.name for one in stub.runs] == ["pre-ln, seed 0", "sas-p, seed 0"]
    for one, preset in zip(stub.runs, ("pre-ln", "sas-p"), strict=True):
        sent = [(t["train/global_step"], t["eval/loss"]) for t in one.told if "eval/loss" in t]
        assert sent == losses(tmp_path / "out" / "runs" / f"{preset}-seed0", "validation")
        assert one.ended


def test_an_error_ends_the_run_of_wandb_too(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = installed(monkeypatch)

    def fails(*_: object) -> None:
        stub.init(name="one")
        raise MemoryError

    monkeypatch.setattr(Recorder, "record", fails)
    settings = RunSettings(preset="sas", model=MODEL, training=TRAINING, report_to="wandb")
    with pytest.raises(MemoryError):
        train(settings, corpus, tmp_path / "out", Progress())
    assert [one.ended for one in stub.runs] == [True]


def test_an_unknown_tracker_is_refused() -> None:
    settings = RunSettings(preset="sas", model=MODEL, training=TRAINING)
    with pytest.raises(ArgumentError, match="--report-to: 'comet_ml' is unknown"):
        replace(settings, report_to="comet_ml")
