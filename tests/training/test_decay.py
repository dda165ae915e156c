"""Rates by width: the rate of a matrix times its weight decay is that of all others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainingArguments

import hessblocks as hb
from hessblocks.settings import TrainingSettings
from hessblocks.training.trainer import optimiser_of


def test_rate_times_decay_is_the_same_in_all_groups_that_decay(tmp_path: Path) -> None:
    model = hb.build("pre-ln", depth=1, width=32, heads=2, vocab_size=20, context=8)
    settings = TrainingSettings(rates="width", base_width=8, learning_rate=0.01, weight_decay=0.2)
    trainer: Any = SimpleNamespace(model=model, args=TrainingArguments(str(tmp_path), report_to=[]))
    optimiser = optimiser_of(trainer, settings)
    assert optimiser is not None
    matrices, tables, _ = optimiser.param_groups
    assert matrices["lr"] == pytest.approx(0.01 * 8 / 32)
    products = [group["lr"] * group["weight_decay"] for group in (matrices, tables)]
    assert products == pytest.approx([0.002, 0.002])
