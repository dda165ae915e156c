"""Generation: every way of decoding and every cache gives the tokens that no cache gives."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache

import hessblocks as hb
from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Shaping
from hessblocks.blocks.norms import LayerNorm, RMSNorm
from hessblocks.blocks.positions import LearnedPosition, NoPosition, SinusoidalPosition
from tests.models.cases import ids, perturbed, presets

LEFT_PADDED = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
DECODING: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 5, "temperature": 0.7},
    "beams": {"do_sample": False, "num_beams": 3},
}
CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static", "disable_compile": True},
}


def generate(model: PreTrainedModel, prompt: Tensor, **settings: Any) -> Tensor:
    torch.manual_seed(1)
    return model.generate(
        prompt, attention_mask=LEFT_PADDED, max_new_tokens=8, pad_token_id=0, **settings
    )


SEARCHED = ("sas-p",)
"""The preset that samples and searches with beams every day; every preset is greedy."""
DECODED = [
    pytest.param(
        *(DECODING[decoding], CACHES[cache], name),
        id=f"{decoding}-{cache}-{name}",
        marks=[] if decoding == "greedy" or name in SEARCHED else [pytest.mark.slow],
    )
    for decoding in DECODING
    for cache in CACHES
    for name in hb.PRESETS
]


@pytest.mark.parametrize(("decoding", "cache", "name"), DECODED)
def test_caches_change_no_token(name: str, decoding: dict[str, Any], cache: dict[str, Any]) -> None:
    model, prompt = perturbed(name), ids(2, 6)
    expected = generate(model, prompt, use_cache=False, **decoding)
    assert torch.equal(generate(model, prompt, **decoding, **cache), expected)


@presets
def test_a_padded_row_is_generated_as_if_alone(name: str) -> None:
    model, prompt = perturbed(name), ids(2, 6)
    together = generate(model, prompt, do_sample=False)
    alone = model.generate(
        prompt[1:, 2:],
        attention_mask=LEFT_PADDED[1:, 2:],
        max_new_tokens=8,
        do_sample=False,
        pad_token_id=0,
    )
    assert torch.equal(together[1, 6:], alone[0, 4:])


@presets
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("mask", [None, LEFT_PADDED], ids=["full", "padded"])
def test_cached_logits_equal_uncached_ones(name: str, static: bool, mask: Tensor | None) -> None:
    model, tokens = perturbed(name), ids(2, 10)
    cache = StaticCache(config=model.config, max_cache_len=20) if static else None
    whole = None if mask is None else torch.cat([mask, torch.ones(2, 4, dtype=torch.long)], dim=1)
    expected = model(tokens, attention_mask=whole).logits
    for start, stop in ((0, 6), (6, 9), (9, 10)):  # a prompt, a piece of several tokens, one token
        seen = None if whole is None else whole[:, :stop]
        out = model(
            tokens[:, start:stop], attention_mask=seen, past_key_values=cache, use_cache=True
        )
        cache = out.past_key_values
        real = slice(None) if whole is None else whole[:, start:stop].bool()
        assert torch.allclose(out.logits[real], expected[:, start:stop][real], atol=1e-5)


SLOTS: dict[str, dict[str, Any]] = {
    "one matrix": {
        "position": LearnedPosition(),
        "attention": Attention(query_key="one-matrix", shaping=Shaping()),
    },
    "linear": {"attention": Attention(scores="linear")},
    "linear shaped": {"attention": Attention(scores="linear", shaping=Shaping(centred=False))},
    "grouped shaped": {"key_value_heads": 2, "attention": Attention(shaping=Shaping())},
    "query-key norm": {
        "attention": Attention(query_key_norm=LayerNorm(), query_norm=RMSNorm(gain=0.0))
    },
    "sinusoidal": {"position": SinusoidalPosition()},
    "no position": {"position": NoPosition(), "attention": Attention(shaping=Shaping())},
}


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("fields", SLOTS.values(), ids=SLOTS)
def test_caches_change_no_token_of_other_slots(
    fields: dict[str, Any], cache: dict[str, Any]
) -> None:
    model, prompt = perturbed("pre-ln", **fields), ids(2, 6)
    expected = generate(model, prompt, use_cache=False, do_sample=False)
    assert torch.equal(generate(model, prompt, do_sample=False, **cache), expected)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("fields", SLOTS.values(), ids=SLOTS)
def test_one_token_behind_a_cache_sees_all_of_it_without_a_mask(
    fields: dict[str, Any], implementation: str
) -> None:
    model, tokens = perturbed("pre-ln", **fields), ids(2, 9)
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        whole = model(tokens).logits
        cache = model(tokens[:, :8], use_cache=True).past_key_values
        last = model(tokens[:, 8:], past_key_values=cache).logits
    assert torch.allclose(last, whole[:, 8:], atol=1e-5)


@pytest.mark.parametrize(
    "cache",
    [{}, {"cache_implementation": "static", "disable_compile": True}],
    ids=["dynamic", "static"],
)
def test_generation_stops_at_the_context_with_a_sentence(cache: dict[str, Any]) -> None:
    model = perturbed("sas", position="learned")
    asked = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with pytest.raises(hb.ArgumentError, match="longer than the model's context of 24"):
        model.generate(ids(1, 20), **asked, **cache)


@pytest.mark.parametrize("cache", [True, False])
def test_a_prompt_longer_than_a_learned_context_is_named_by_its_length(cache: bool) -> None:
    model = perturbed("pre-ln", position="learned")
    with pytest.raises(hb.ArgumentError, match=r"input_ids: 30 tokens are longer .* context of 24"):
        model.generate(ids(1, 30).clamp(min=1), max_new_tokens=2, pad_token_id=0, use_cache=cache)
