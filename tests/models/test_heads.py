"""Heads of their own kinds: numbers, classes of tokens, answers in texts; what labels may be; what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    GenerationConfig,
)

import hessblocks as hb
from hessblocks.models.heads import HessblocksForSequenceClassification
from tests.models.cases import SIZES, ids, perturbed

MASK = torch.tensor([[1] * 7 + [0] * 3, [1] * 10])
AUTO: dict[str, Any] = {
    "token-classification": AutoModelForTokenClassification,
    "question-answering": AutoModelForQuestionAnswering,
}
TASKS = pytest.mark.parametrize("task", AUTO)


@TASKS
@pytest.mark.parametrize("name", ["sas-p", "pre-ln"])
def test_a_head_is_saved_loaded_and_blind_to_padding(tmp_path: Path, name: str, task: str) -> None:
    model, tokens = perturbed(name, task=task), ids(2, 10)
    model.save_pretrained(tmp_path)
    loaded = AUTO[task].from_pretrained(tmp_path).eval()
    noisy = torch.where(MASK.bool(), tokens, (tokens + 1) % 29)
    expected = model(tokens, attention_mask=MASK)[0]
    assert torch.equal(loaded(tokens, attention_mask=MASK)[0], expected)
    changed = loaded(noisy, attention_mask=MASK)[0]
    assert torch.allclose(changed[MASK.bool()], expected[MASK.bool()], atol=1e-5)


@TASKS
def test_a_masked_trunk_gets_another_head(tmp_path: Path, task: str) -> None:
    masked, tokens = perturbed("sas-p", task="masked-lm"), ids(2, 5)
    masked.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="score.weight is new and has to be trained"):
        model = AUTO[task].from_pretrained(tmp_path).eval()
    hidden = model.model(tokens).last_hidden_state
    assert torch.equal(hidden, masked.model(tokens).last_hidden_state)


def test_the_loss_of_tokens_counts_those_with_a_label() -> None:
    model, tokens = perturbed("sas-p", task="token-classification", classes=3), ids(2, 10)
    labels = torch.full((2, 10), -100)
    labels[0, 3], labels[1, 4] = 2, 0
    found = model(tokens, labels=labels)
    assert found.logits.shape == (2, 10, 3)
    chosen = found.logits.log_softmax(-1)
    assert torch.isclose(found.loss, -(chosen[0, 3, 2] + chosen[1, 4, 0]) / 2)


def test_the_loss_of_answers_is_the_mean_of_both_ends() -> None:
    model, tokens = perturbed("sas-p", task="question-answering"), ids(3, 10)
    start, end = torch.tensor([1, 2, 10]), torch.tensor([4, 2, 11])  # the last lies outside
    found = model(tokens, start_positions=start, end_positions=end)
    losses = [
        F.cross_entropy(logits[:2], at[:2])
        for logits, at in ((found.start_logits, start), (found.end_logits, end))
    ]
    assert torch.isclose(found.loss, sum(losses) / 2)
    with pytest.raises(hb.ArgumentError, match="give both start_positions and end_positions"):
        model(tokens, start_positions=start)


@pytest.mark.parametrize("labels", [torch.tensor([0.5, -2.0]), torch.tensor([3, 1])])
def test_one_label_is_a_regression(labels: Tensor, tmp_path: Path) -> None:
    model, tokens = perturbed("sas-p", task="classification", classes=1), ids(2, 10)
    assert isinstance(model, HessblocksForSequenceClassification)
    found = model(tokens, labels=labels)
    assert found.logits.shape == (2, 1)
    assert torch.isclose(found.loss, ((found.logits[:, 0] - labels) ** 2).mean())
    assert torch.equal(model(tokens, labels=labels[:, None]).loss, found.loss)
    shared = model(tokens, labels=labels, num_items_in_batch=4).loss
    assert torch.isclose(shared, found.loss / 2)
    model.save_pretrained(tmp_path)
    again = HessblocksForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(again(tokens, labels=labels).loss, found.loss)


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "classification"])
def test_labels_and_tokens_may_have_32_bits(task: str) -> None:
    model, tokens = perturbed("sas-p", task=task), ids(2, 6)
    labels = torch.tensor([0, 1]) if task == "classification" else tokens
    expected = model(tokens, labels=labels).loss
    assert torch.equal(model(tokens.int(), labels=labels.int()).loss, expected)


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "question-answering"])
def test_segments_are_refused_in_words(task: str) -> None:
    model, tokens = perturbed("sas-p", task=task), ids(2, 6)
    with pytest.raises(hb.ArgumentError, match=r"token_type_ids: .* return_token_type_ids=False"):
        model(tokens, token_type_ids=torch.zeros_like(tokens))


def test_continuous_batching_is_refused_in_words() -> None:
    model = hb.build("sas-p", **SIZES)
    settings = GenerationConfig(max_new_tokens=2, pad_token_id=0, eos_token_id=1)
    with pytest.raises(hb.ArgumentError, match=r"generate_batch: .* use generate with a padded"):
        model.generate_batch([[2, 3], [4]], generation_config=settings)


NAMES = {
    "causal-lm": {"label": "labels", "start_positions": None},
    "question-answering": {"labels": None, "start_position": "start_positions"},
    "classification": {"logits_to_keep": None, "labls": "labels"},
}


@pytest.mark.parametrize("task", NAMES)
def test_an_unknown_argument_is_answered_with_those_of_the_model_that_was_called(task: str) -> None:
    model = hb.build("sas", task=task, **SIZES)
    for name, near in NAMES[task].items():
        with pytest.raises(hb.ArgumentError) as caught:
            model(ids(1, 4), **{name: ids(1, 4)})
        said, known = str(caught.value).split(" Known: ")
        assert name not in known.rstrip(".").split(", ")
        assert near is None or f"did you mean '{near}'" in said
    with pytest.raises(hb.ArgumentError, match=r"'labels' is unknown.* Known: attention_mask"):
        model.model(ids(1, 4), labels=ids(1, 4))
