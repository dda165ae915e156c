"""Heads of their own kinds: what labels may be; what is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

import hessblocks as hb
from hessblocks.models.heads import HessblocksForSequenceClassification
from tests.models.cases import SIZES, ids, perturbed


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


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "classification"])
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
    "masked-lm": {"label": "labels", "input_id": "input_ids", "logits_to_keep": None},
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
