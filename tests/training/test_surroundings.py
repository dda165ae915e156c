"""The settings decide what is trained, whatever the environment and torch's defaults say."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hessblocks.data.corpus import Corpus
from hessblocks.training.preparation import build_model
from hessblocks.training.trainer import quiet_arguments
from tests.training.helpers import COMPARISON, MODEL, complete, numbers

ONE = replace(COMPARISON, presets=("pre-ln",), curvature=None)


@pytest.fixture
def in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("asked", ["bf16", "fp16", "no"])
def test_the_environment_does_not_choose_the_precision(
    asked: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", asked)
    assert quiet_arguments(tmp_path, "cpu").mixed_precision == "no"
    assert quiet_arguments(tmp_path, "cpu", bf16=True).mixed_precision == "bf16"
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == asked


def test_a_model_is_built_in_float32(in_double: None) -> None:
    model = build_model(MODEL, "pre-ln", 260, seed=0)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.get_default_dtype() == torch.float64


@pytest.mark.parametrize("surrounding", ["environment", "default type"])
def test_the_numbers_of_training_are_those_of_the_settings(
    corpus: Corpus,
    tmp_path: Path,
    undisturbed: Path,
    surrounding: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if surrounding == "environment":
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    else:
        request.getfixturevalue("in_double")
    complete(corpus, tmp_path / "out", ONE)
    losses, _ = numbers(tmp_path / "out")
    expected, _ = numbers(undisturbed)
    assert losses == [line for line in expected if line["preset"] == "pre-ln"]
