"""Masked language models and classifiers: they see both directions and no padding."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

import hessblocks as hb

SIZES = {"depth": 2, "width": 16, "heads": 4, "vocab_size": 29, "context": 12}
presets = pytest.mark.parametrize("name", hb.PRESETS)
tasks = pytest.mark.parametrize("task", ["masked-lm", "classification"])


def perturbed(name: str, task: str) -> torch.nn.Module:
    model = hb.build(name, task=task, classes=3, **SIZES).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


@presets
@tasks
def test_padding_tokens_change_nothing(name: str, task: str) -> None:
    model = perturbed(name, task)
    tokens, mask = torch.randint(0, 29, (2, 10)), torch.tensor([[1] * 7 + [0] * 3, [1] * 10])
    noisy = torch.where(mask.bool(), tokens, (tokens + 1) % 29)
    before, after = (model(t, attention_mask=mask).logits for t in (tokens, noisy))
    rows = mask.bool() if task == "masked-lm" else torch.ones(2, dtype=torch.bool)
    assert torch.allclose(before[rows], after[rows], atol=1e-5)


@presets
def test_a_masked_model_sees_later_tokens(name: str) -> None:
    model = perturbed(name, "masked-lm")
    tokens = torch.randint(0, 29, (1, 10))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 29
    assert not torch.allclose(model(tokens).logits[:, 0], model(changed).logits[:, 0], atol=1e-5)


@presets
@tasks
def test_losses_reach_every_parameter(name: str, task: str) -> None:
    model = perturbed(name, task)
    tokens = torch.randint(0, 29, (2, 10))
    labels = tokens if task == "masked-lm" else torch.tensor([0, 2])
    model(tokens, labels=labels).loss.backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None]


def test_a_pretrained_trunk_becomes_a_classifier(tmp_path: Path) -> None:
    masked = perturbed("sas-p", "masked-lm")
    masked.save_pretrained(tmp_path)
    tokens = torch.randint(0, 29, (2, 10))
    assert torch.equal(
        AutoModelForMaskedLM.from_pretrained(tmp_path).eval()(tokens).logits, masked(tokens).logits
    )
    with pytest.warns(UserWarning, match="score.weight is new and has to be trained"):
        classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    classifier.eval()
    assert classifier(tokens).logits.shape == (2, 5)
    assert torch.equal(
        classifier.model(tokens).last_hidden_state, masked.model(tokens).last_hidden_state
    )


def test_a_masked_loss_counts_masked_tokens_only() -> None:
    model = perturbed("pre-ln", "masked-lm")
    tokens = torch.randint(0, 29, (2, 10))
    labels = torch.full_like(tokens, -100)
    labels[0, 3] = tokens[0, 3]
    expected = -model(tokens).logits[0, 3].log_softmax(-1)[tokens[0, 3]]
    assert model(tokens, labels=labels).loss.item() == pytest.approx(expected.item(), rel=1e-5)
