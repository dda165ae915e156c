"""The longest sequence that a saved model is said to take is the longest that it takes."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

import hessblocks as hb
from hessblocks.models.saved import context_of

SIZES = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2,
}  # fmt: skip
PLACES = {
    "bert": 14, "electra": 14, "gpt2": 14, "opt": 14, "roberta": 12, "xlm-roberta": 12,
    "xlm-roberta-xl": 12, "camembert": 12,
    "longformer": 12, "data2vec-text": 12, "mpnet": 12, "ibert": 12,
}  # fmt: skip
"""Of 14 places in the configuration, those that tokens take; the token for padding is 1."""


@pytest.mark.parametrize("kind", PLACES)
def test_a_text_of_that_length_passes_and_a_longer_one_does_not(kind: str) -> None:
    more = {"attention_window": 4} if kind == "longformer" else {}
    more |= {"ffn_dim": 16, "word_embed_proj_dim": 16} if kind == "opt" else {}
    config = AutoConfig.for_model(kind, **SIZES, **more, max_position_embeddings=14)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    found = context_of(model)
    assert found == PLACES[kind]
    with torch.no_grad():
        assert model(torch.full((1, found), 5)).logits.isfinite().all()
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, found + 1), 5))


def test_a_number_that_is_not_a_bound_does_not_count() -> None:
    config = AutoConfig.for_model("xlnet", vocab_size=20, d_model=8, n_layer=1, n_head=1, d_inner=8)
    assert config.max_position_embeddings == -1
    assert context_of(AutoModelForSequenceClassification.from_config(config)) is None
    assert context_of(torch.nn.Linear(2, 2)) is None


def test_curvature_and_our_own_models_know_theirs() -> None:
    config = AutoConfig.for_model("roberta", **SIZES, is_decoder=True, max_position_embeddings=14)
    model = AutoModelForCausalLM.from_config(config)
    assert context_of(model) == 12
    ours = hb.build("sas-p", depth=1, width=16, heads=2, vocab_size=12, context=9)
    assert context_of(ours) == 9
