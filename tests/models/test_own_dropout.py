"""Dropout is no slot; as a part of one's own it draws in training alone, and curvature and signal
never see it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import hessblocks as hb
from hessblocks.blocks import MLP
from hessblocks.curvature import RepeatabilityWarning
from tests.models.cases import ids


@dataclass(frozen=True, kw_only=True)
class DroppedMLP(MLP, kind="dropped-mlp"):
    rate: float = 0.3

    def build(self, width: int, hidden: int) -> Any:
        return nn.Sequential(super().build(width, hidden), nn.Dropout(self.rate))


DAILY = ("pre-ln", "parallel", "sas-p")
"""One of each layout of a block; each preset takes most of a second."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in DAILY else [pytest.mark.slow]) for name in hb.PRESETS],
)
def test_dropout_of_the_user_acts_in_training_alone(name: str, tmp_path: Path) -> None:
    tokens = ids(2, 8)
    block = hb.preset(name, width=16, heads=4)
    model = hb.build(block.replace(mlp=DroppedMLP()), depth=2, vocab_size=29, context=8)
    model.train()
    assert not torch.equal(model(tokens).logits, model(tokens).logits)
    expected = model.eval()(tokens).logits
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(tokens).logits, expected)
    batch = {"input_ids": tokens}
    still = hb.frobenius_norm(hb.Hessian(hb.Problem(model, batch)), probes=4)
    shown = hb.signal.propagate(model, batch, jacobian_steps=0).to_rows()
    model.train()
    with pytest.warns(RepeatabilityWarning, match="dropout is switched off"):
        norm = hb.frobenius_norm(hb.Hessian(hb.Problem(model, batch)), probes=4)
    assert norm.value == pytest.approx(still.value, rel=1e-6)
    assert hb.signal.propagate(model, batch, jacobian_steps=0).to_rows() == shown
    assert all(module.training for module in model.modules())
