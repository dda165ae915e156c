"""Memory of an update: counted, so the same in every run and in whatever order."""

from dataclasses import replace

import pytest
import torch

from hessblocks.settings.run_settings import RunSettings
from hessblocks.training.preparation import build_model
from hessblocks.training.recorder import start_counting
from tests.training.helpers import MODEL, TRAINING


@pytest.mark.parametrize(("optimiser", "kept"), [("adamw", 2), ("sgd", 1)])
def test_weights_gradients_and_averages_are_counted(optimiser: str, kept: int) -> None:
    training = replace(TRAINING, optimiser=optimiser)
    settings = RunSettings(preset="pre-ln", model=MODEL, training=training)
    model = build_model(MODEL, "pre-ln", 64, seed=0)
    weights = sum(4 * p.numel() for p in model.parameters())
    one, four = (start_counting(model, settings, sequences) for sequences in (1, 4))
    assert start_counting(model, settings, 1) == one
    logits = 4 * 64 * MODEL.context
    assert one > (2 + kept) * weights + logits
    assert 3 * logits < four - one
    assert all(p.grad is None for p in model.parameters())


def test_counting_changes_no_random_number() -> None:
    settings = RunSettings(preset="sas", model=MODEL, training=TRAINING)
    model = build_model(MODEL, "sas", 64, seed=0)
    before = torch.get_rng_state()
    start_counting(model, settings, 2)
    assert torch.equal(torch.get_rng_state(), before)
