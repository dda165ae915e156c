"""Attention of any model, head by head: against eager weights, the closed forms and other ways
in."""

import copy
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

import hessblocks as hb
from hessblocks.signal import heads
from hessblocks.signal.propagation import Signal, propagate

SIZES: dict[str, Any] = {
    "vocab_size": 29, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2,
    "intermediate_size": 24, "max_position_embeddings": 16,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2}
GPT2 = {
    "n_embd": 16,
    "n_head": 4,
    "n_layer": 2,
    "vocab_size": 29,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)),
    "bert": lambda: BertForMaskedLM(BertConfig(**SIZES)),
}
WIDE = GROUPED | {"head_dim": 4, "sliding_window": 3, "pad_token_id": 0}
BENT = {  # sdpa has neither
    "softcap": lambda: Gemma2ForCausalLM(Gemma2Config(**WIDE, attn_logit_softcapping=0.7)),
    "sinks": lambda: GptOssForCausalLM(
        GptOssConfig(
            **WIDE, num_local_experts=2, num_experts_per_tok=1, experts_implementation="eager"
        )
    ),
}
REAL = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
BATCH = {"input_ids": torch.randint(0, 29, (2, 7)), "attention_mask": REAL}


def built(name: str, function: str = "sdpa") -> PreTrainedModel:
    model = {**MODELS, **BENT}[name]().double().eval()
    model.set_attn_implementation(function)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def inputs_of_attention(model: PreTrainedModel, batch: dict[str, Tensor]) -> list[Tensor]:
    """What the modules read that make queries or all three."""
    names = ("q_proj", "c_attn", "query_key_value", "query")
    seen: list[Tensor] = []
    handles = [
        module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        for name, module in model.named_modules()
        if name.split(".")[-1] in names
    ]
    model(**batch)
    for handle in handles:
        handle.remove()
    return seen


def expected(model: PreTrainedModel, batch: dict[str, Tensor]) -> list[Tensor]:
    """By layer the entropy and tr M_2 of each head, by definition from eager weights."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    weights = eager(**batch, output_attentions=True).attentions
    real = batch["attention_mask"].bool()
    found = []
    for a, x in zip(weights, inputs_of_attention(eager, batch), strict=True):
        entropies = torch.special.entr(a).sum(-1)
        means = torch.einsum("bhts,bsd->bhtd", a, x)
        apart = (x[:, None, None] - means[:, :, :, None]).square().sum(-1)
        of_sink = (1 - a.sum(-1)) * means.square().sum(-1)  # its vector is zero
        moments = (a * apart).sum(-1) + of_sink
        found.append(
            torch.stack([one.transpose(1, 2)[real].mean(0) for one in (entropies, moments)])
        )
    return found


def test_heads_are_those_of_eager_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "TILE", 3 * 4 * 16)  # three queries a tile
    # eager functions of transformers round their weights to float32, whatever the model's dtype
    monkeypatch.setattr(nn.functional, "softmax", lambda x, dim, dtype=None: x.softmax(dim))
    own = AttentionInterface.get_interface
    for name in (*MODELS, *BENT):
        for function in ("sdpa", "eager", "second_order") if name in MODELS else ("eager",):
            model = built(name, function)
            found = propagate(model, BATCH, jacobian_steps=0)
            assert model.config._attn_implementation == function
            with torch.no_grad():
                wanted = expected(model, BATCH)
            for layer, (entropies, moments) in zip(found.layers, wanted, strict=True):
                assert layer.reason == ""
                ours = [[h.entropy for h in layer.heads], [h.second_moment for h in layer.heads]]
                assert ours[0] == pytest.approx(entropies.tolist(), abs=1e-10), (name, function)
                assert ours[1] == pytest.approx(moments.tolist(), abs=1e-10), (name, function)
    assert AttentionInterface.get_interface is own
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_largest_logit_is_that_of_queries_and_keys_that_are_seen() -> None:
    model = built("llama")
    scores: list[Tensor] = []

    def noting(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **given: Any) -> Any:
        scores.append(given["scaling"] * q @ k.repeat_interleave(2, 1).mT)
        return heads_of_sdpa(module, q, k, v, mask, **given)

    heads_of_sdpa = AttentionInterface._global_mapping["sdpa"]
    # an entry of the instance goes before the global one, and other tests may leave one there
    with patch.dict(ALL_ATTENTION_FUNCTIONS._local_mapping, {"sdpa": noting}):
        found = propagate(model, BATCH, jacobian_steps=0)
    seen = (
        REAL.bool()[:, None, None, :]
        & REAL.bool()[:, None, :, None]
        & torch.ones(7, 7).tril().bool()
    )
    for layer, own in zip(found.layers, scores, strict=True):
        largest = own.abs().masked_fill(~seen, 0).amax((0, 2, 3))
        assert [head.largest_logit for head in layer.heads] == pytest.approx(largest.tolist())
        assert layer.largest_logit == pytest.approx(largest.max().item())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_second_moment_is_that_of_the_closed_forms(name: str) -> None:
    model = built(name)
    tokens = torch.randint(0, 29, (2, 7))
    moments = hb.exact_attention_curvature(model, {"input_ids": tokens}).moments
    traces = moments.second.diagonal(dim1=-2, dim2=-1).sum(-1).mean((0, 2))
    last = propagate(model, tokens, jacobian_steps=0).layers[-1]
    assert [head.second_moment for head in last.heads] == pytest.approx(traces.tolist(), abs=1e-10)


def test_no_tile_is_tokens_by_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    entropy = torch.special.entr
    monkeypatch.setattr(
        torch.special, "entr", lambda rows: (sizes.append(rows.numel()), entropy(rows))[1]
    )
    model = built("llama")
    tokens = torch.randint(0, 29, (1, 16))  # without a mask: causal alone
    whole = propagate(model, tokens, jacobian_steps=0)
    assert max(sizes) == 4 * 16 * 16
    monkeypatch.setattr(heads, "TILE", 3 * 4 * 16)
    sizes.clear()
    tiled = propagate(model, tokens, jacobian_steps=0)
    assert max(sizes) == heads.TILE
    for one, other in zip(whole.layers, tiled.layers, strict=True):
        assert one.reason == ""
        assert one.second_moment == pytest.approx(other.second_moment)
        assert one.largest_logit == other.largest_logit


def test_keys_of_an_encoder_have_no_second_moment_here() -> None:
    class Cross(nn.Module):
        is_causal = False

        def forward(self, hidden_states: Tensor, key_value_states: Tensor) -> Tensor:
            q, k = hidden_states[:, None], key_value_states[:, None]
            function = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", sdpa_attention_forward)
            return function(self, q, k, k, None)[0][:, :, 0]

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(29, 8)
            self.layers = nn.ModuleList([Cross()])

        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.embedding(input_ids)
            return self.layers[0](x, key_value_states=x.flip(1))

    (layer,) = propagate(Reader(), torch.randint(0, 29, (1, 5)), jacobian_steps=0).layers
    assert layer.attention_entropy is not None
    assert layer.second_moment is None
    assert "other vectors" in layer.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_taken_as_it_is(dtype: torch.dtype) -> None:
    for name in ("llama", "bert"):
        model = built(name)
        exact = propagate(model, BATCH, jacobian_steps=0).layers[0]
        found = propagate(model.to(dtype), BATCH, jacobian_steps=0).layers[0]
        near = 1e-4 if dtype == torch.float32 else 0.2
        assert found.attention_entropy == pytest.approx(exact.attention_entropy, rel=near)
        assert found.second_moment == pytest.approx(exact.second_moment, rel=near)


def test_equal_tokens_leave_no_second_moment() -> None:
    model = built("llama")
    same = propagate(model, torch.full((2, 7), 3), jacobian_steps=0)
    assert same.layers[0].second_moment == pytest.approx(0, abs=1e-25)


def test_the_model_does_what_it_did_and_gets_its_gradients() -> None:
    model = built("gpt2")
    labelled = BATCH | {"labels": BATCH["input_ids"]}
    found = propagate(model, labelled, jacobian_steps=0)
    model(**labelled).loss.backward()
    attention = model.transformer.h[0].attn.c_attn
    norms = sum(p.grad.square().sum() for p in attention.parameters()) ** 0.5
    roles = found.layers[0].gradient_norms
    assert roles["query_key_value"] == pytest.approx(float(norms))
    assert list(roles) == ["norm", "query_key_value", "projection", "mlp_in", "mlp_out"]


@pytest.mark.parametrize("name", list(MODELS))
def test_every_role_of_known_models_has_a_name(name: str) -> None:
    labelled = BATCH | {"labels": BATCH["input_ids"]}
    for layer in propagate(built(name), labelled, jacobian_steps=0).layers:
        assert not any("." in role for role in layer.gradient_norms), layer.gradient_norms


def reasons(found: Signal) -> set[str]:
    return {row["method"] for row in found.to_rows() if row["quantity"] == "attention_entropy"}


def test_attention_that_is_more_than_softmax_is_reported() -> None:
    model = built("llama")

    def bent(*given: Any, **words: Any) -> Any:
        mixed, _ = AttentionInterface._global_mapping["sdpa"](*given, **words)
        return 1.01 * mixed, None

    AttentionInterface.register("bent", bent)
    try:
        model.config._attn_implementation = "bent"
        found = propagate(model, BATCH, jacobian_steps=0)
    finally:
        del AttentionInterface._global_mapping["bent"]
    assert found.layers[0].heads == ()
    assert found.layers[0].attention_entropy is None
    (reason,) = reasons(found)
    assert "more than softmax" in reason


def test_attention_of_the_user_is_reported() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(29, 8)
            self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)])

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.layers[0](self.embedding(input_ids))

    (reason,) = reasons(propagate(Own(), torch.randint(0, 29, (1, 5)), jacobian_steps=0))
    assert "does not go through" in reason


@pytest.mark.parametrize("name", ["pre-ln", "modern"])
def test_our_matrix_and_tiles_agree(name: str) -> None:
    model = hb.build(name, depth=1, width=16, heads=4, vocab_size=29, context=16).double()
    (layer,) = propagate(model, BATCH, jacobian_steps=0).layers
    module = type(model.model.layers[0].attention)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(module, "matrix")
        (tiled,) = propagate(model, BATCH, jacobian_steps=0).layers
    for one, other in zip(layer.heads, tiled.heads, strict=True):
        assert one.entropy == pytest.approx(other.entropy, abs=1e-10)
        assert one.second_moment == other.second_moment


def test_a_mask_of_least_numbers_permits_what_its_booleans_do() -> None:
    query, key, value = torch.randn(3, 1, 2, 5, 4).double().unbind()
    allowed = torch.eye(5, dtype=torch.bool).tril()[None, None]
    added = torch.zeros(1, 1, 5, 5).double().masked_fill(~allowed, torch.finfo(torch.float64).min)
    shares = (query @ key.mT).masked_fill(~allowed, -torch.inf).softmax(-1)
    call = {"query": query, "key": key, "value": value, "scale": 1.0, "causal": False, "x": None}
    call["output"] = (shares @ value).transpose(1, 2)
    real = torch.ones(1, 5, dtype=torch.bool)
    by_booleans, by_numbers = (
        heads.head_signals(heads.SoftmaxCall(**call, mask=mask), real) for mask in (allowed, added)
    )
    assert by_numbers == by_booleans
