"""Sliding windows: those of Mistral, under every mask, kernel and cache; the centre of shaped
attention too."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

import hessblocks as hb
from hessblocks.blocks import MLP, Attention, Context, RMSNorm, Shaping
from tests.models.cases import ids, perturbed

WINDOW, TOKENS = 3, 9
PADDED = torch.tensor([[1] * TOKENS, [0] * 4 + [1] * 5, [1] * 6 + [0] * 3])
PLACES = torch.cat([torch.arange(5), torch.arange(4)])[None]
NEAR = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril().triu(1 - WINDOW)


def windowed(preset: str, **fields: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return perturbed(preset, slots={"attention.window": WINDOW}, **fields)


def of_mistral() -> tuple[PreTrainedModel, PreTrainedModel]:
    """Mistral with random weights, and ours with the same."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24}
    config = MistralConfig(
        vocab_size=29,
        hidden_size=16,
        num_hidden_layers=2,
        sliding_window=WINDOW,
        rms_norm_eps=1e-6,
        **sizes,
    )
    theirs, norm = MistralForCausalLM(config).eval(), RMSNorm(eps=1e-6)
    ours = windowed(
        "pre-ln",
        key_value_heads=2,
        mlp_width=24,
        norm=norm,
        final_norm=norm,
        mlp=MLP(gated=True, activation="silu"),
        tie_word_embeddings=False,
    )
    names = {
        "model.token_embedding": "model.embed_tokens",
        "model.final_norm": "model.norm",
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        **{f"attention.{one}": f"self_attn.{one[0]}_proj" for one in ("query", "key", "value")},
        "attention.projection": "self_attn.o_proj",
        "mlp.input": "mlp.up_proj",
        "mlp.gate": "mlp.gate_proj",
        "mlp.output": "mlp.down_proj",
    }
    state = {}
    for name, parameter in ours.state_dict().items():
        for own, other in names.items():
            name = name.replace(own, other)
        state[name] = parameter
    theirs.load_state_dict(state)
    return ours, theirs


@pytest.mark.parametrize(
    "given",
    [{}, {"attention_mask": PADDED}, {"position_ids": PLACES.expand(3, -1)}],
    ids=["full", "padded", "packed"],
)
@pytest.mark.parametrize("kernel", ["sdpa", "eager", "second_order"])
def test_a_window_is_that_of_mistral(given: dict[str, Tensor], kernel: str) -> None:
    (ours, theirs), tokens = of_mistral(), ids(3, TOKENS)
    ours.set_attn_implementation(kernel)
    places = (
        {"position_ids": (PADDED.cumsum(-1) - 1).clamp(min=0)} if "attention_mask" in given else {}
    )
    expected = theirs(tokens, **{**places, **given}, use_cache=False).logits
    real = given.get("attention_mask", torch.ones(3, TOKENS)).bool()
    assert torch.allclose(ours(tokens, **given).logits[real], expected[real], atol=1e-5)


@pytest.mark.parametrize("mask", [None, PADDED], ids=["full", "padded"])
def test_the_centre_is_uniform_over_the_window(mask: Tensor | None) -> None:
    seen: list[tuple[Any, ...]] = []
    model = windowed("sas-p", attention=Attention(shaping=Shaping()), depth=1)
    layer = model.model.layers[0]
    layer.attention.register_forward_hook(lambda _, given, out: seen.append((*given, out)))
    model(ids(3, TOKENS), attention_mask=mask)
    x, context, *_, found = seen[0]
    allowed = NEAR & (torch.ones_like(PADDED) if mask is None else PADDED).bool()[:, None, :]
    allowed = (allowed | torch.eye(TOKENS, dtype=torch.bool))[:, None]
    query, key, value = layer.attention._project(x, context.rotation)
    scores = query @ key.mT / 2
    plain = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    centre = allowed / allowed.sum(-1, keepdim=True)
    alpha, beta, gamma = layer.attention.gains.per_head()
    matrix = alpha * torch.eye(TOKENS) + beta * plain - gamma * centre
    expected = layer.attention.projection((matrix @ value).transpose(1, 2).flatten(2))
    real = slice(None) if mask is None else PADDED.bool()
    assert torch.allclose(found[real], expected[real], atol=1e-5)
    shown = layer.attention.matrix(x, context).transpose(1, 2)
    assert torch.allclose(
        shown[real], matrix.expand(3, -1, -1, -1).transpose(1, 2)[real], atol=1e-5
    )


@pytest.mark.parametrize("kind", ["boolean", "added"])
def test_a_mask_of_the_user_is_narrowed_to_the_window(kind: str) -> None:
    model, tokens = windowed("sas-p"), ids(2, TOKENS)
    own = torch.ones(2, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    if kind == "added":
        own = torch.zeros(own.shape).masked_fill(~own, torch.finfo(torch.float32).min)
    found = model(tokens, attention_mask=own).logits
    assert torch.allclose(found, model(tokens).logits, atol=1e-5)


@pytest.mark.parametrize("preset", ["pre-ln", "sas-p", "pre-ln+skipless"])
@pytest.mark.parametrize(
    "caching", [{}, {"cache_implementation": "static", "disable_compile": True}]
)
def test_generation_is_the_same_with_every_cache(preset: str, caching: dict[str, Any]) -> None:
    model, prompt = windowed(preset), ids(3, TOKENS)
    settings = {"attention_mask": PADDED[[0, 1, 0]], "max_new_tokens": 8, "do_sample": False}
    expected = model.generate(prompt, use_cache=False, pad_token_id=0, **settings)
    assert torch.equal(model.generate(prompt, pad_token_id=0, **settings, **caching), expected)


def test_layers_may_have_windows_of_their_own() -> None:
    """What the last token sees grows with the layers, as their sum says."""
    near, far = (
        hb.preset("pre-ln", width=16, heads=4).replace(attention=Attention(window=w))
        for w in (2, 4)
    )
    model, tokens = perturbed([near, far]).double(), ids(1, 12)
    embedded = model.model.token_embedding(tokens).detach().requires_grad_()
    model(inputs_embeds=embedded).logits[0, -1].square().sum().backward()
    reached = embedded.grad[0].any(dim=-1)
    assert reached.tolist() == [False] * 7 + [True] * 5


@pytest.mark.slow
def test_a_compiled_model_has_the_same_window() -> None:
    model, tokens = windowed("sas-p"), ids(2, TOKENS)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        found = compiled(tokens, attention_mask=PADDED[:2]).logits
        expected = model(tokens, attention_mask=PADDED[:2]).logits
    assert torch.allclose(found[PADDED[:2].bool()], expected[PADDED[:2].bool()], atol=1e-5)


@pytest.mark.bad_input
def test_what_a_window_does_not_fit_is_refused() -> None:
    with pytest.raises(hb.ArgumentError, match="window: expected None with causal=False"):
        windowed("pre-ln", task="masked-lm")
    for wrong in (0, True, 1.5):
        with pytest.raises(hb.ArgumentError, match=r"attention\.window: expected a whole number"):
            hb.preset("pre-ln", attention=Attention(window=wrong))
    model = windowed("pre-ln")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(
        hb.ArgumentError, match=r"flash_attention_2 does not support attention\.window"
    ):
        model(ids(1, 4))
    layer = model.model.layers[0]
    with pytest.raises(hb.ArgumentError, match=r"windows: expected a mask of attention\.window=3"):
        layer(torch.randn(1, 4, 16), Context(windows={2: None}))
