"""Work in turns: who comes when, what counts, what a step does and what a cache holds."""

import pytest
import torch

import hessblocks as hb
from hessblocks_studies.shared import turns
from hessblocks_studies.shared.turns import TimedModel, in_turns

SIZES = {"depth": 2, "width": 16, "heads": 4, "mlp_width": 32, "vocab_size": 20, "context": 8}


def timed_model(preset: str) -> TimedModel:
    torch.manual_seed(0)
    tokens = torch.randint(20, (3, 8))
    return TimedModel(hb.build(preset, **SIZES), tokens, tokens, clip=1.0)


def test_each_comes_once_a_turn_and_the_first_turn_warms_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    came: list[str] = []
    now = [0.0]
    costs = iter([50.0, 70.0, 1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(turns, "working_seconds", lambda device: now[0])

    def run(name: str) -> None:
        came.append(name)
        now[0] += next(costs)

    found = in_turns({name: lambda name=name: run(name) for name in "ab"}, rounds=2)
    assert "".join(came) == "ababab"
    assert found == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


@pytest.mark.parametrize(("preset", "share"), [("pre-ln", 1), ("sas-p", 1), ("modern", 1 / 4)])
def test_a_cache_holds_keys_and_values_of_every_token(preset: str, share: float) -> None:
    """2 layers × (keys + values) × 8 tokens × width 16 × 4 bytes; modern has a key for four
    queries."""
    assert timed_model(preset).decode() == 2 * 2 * 8 * 16 * 4 * share


def test_decoding_passes_every_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = timed_model("sas")
    seen: list[int] = []
    one.model.model.layers[0].register_forward_hook(
        lambda module, given, out: seen.append(given[0].shape[1])
    )
    one.decode()
    assert seen == [1] * 8


def test_a_step_lowers_the_loss_of_its_batch_and_keeps_no_gradient() -> None:
    one = timed_model("sas")
    before = one.model(input_ids=one.tokens, labels=one.labels).loss.item()
    for _ in range(20):
        one.step()
    assert one.model(input_ids=one.tokens, labels=one.labels).loss.item() < before - 0.01
    assert all(parameter.grad is None for parameter in one.model.parameters())
    weights = sum(parameter.numel() for parameter in one.model.parameters())
    assert sum(tensor.numel() for tensor in one.held()) > 3 * weights
