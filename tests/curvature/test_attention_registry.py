"""Attention by tiles in models of transformers: by name, and inside a `Problem` without a word."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.curvature.attention import registered_attention
from hessblocks.errors import ArgumentError
from tests.curvature.live_bytes import LiveBytes

pytestmark = pytest.mark.filterwarnings(
    "ignore::hessblocks.curvature.AttentionBackendWarning",
    "ignore::hessblocks.curvature.PrecisionWarning",
)
SMALL = {
    "vocab_size": 13, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 5,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=13,
        n_embd=16,
        n_head=4,
        n_layer=2,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "mistral": lambda: transformers.MistralConfig(**SMALL),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, query_pre_attn_scalar=4),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SMALL, num_local_experts=2, num_experts_per_tok=1
    ),
}


def model_of(kind: str, implementation: str) -> nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        CONFIGS[kind](), attn_implementation=implementation
    )
    for module in model.modules():
        if hasattr(module, "sinks"):
            nn.init.normal_(module.sinks)
    return model.double().eval()


def batch(tokens: int = 12) -> dict[str, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(3, 13, (2, tokens))
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0  # on the left, Llama's eager rows that see nothing are NaN in float64
    return {"input_ids": ids, "attention_mask": mask}


def product(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    group = next(iter(hb.parameter_groups(model, "tensor").values()))
    torch.manual_seed(2)
    return hb.Hessian(hb.Problem(model, data), group) @ torch.randn(group.size, dtype=torch.float64)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_model_computes_the_same_by_name(kind: str) -> None:
    eager, ours = (
        model_of(kind, name).float()(**batch()).logits for name in ("eager", "second_order")
    )
    real = batch()["attention_mask"].bool()
    assert (eager - ours)[real].abs().max() < 1e-5 * eager.abs().max()


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_product_is_the_same_by_name(kind: str) -> None:
    expected, found = (product(model_of(kind, name), batch()) for name in ("eager", "second_order"))
    bound = 1e-12 if kind == "gpt2" else 1e-5  # the others' softmax is computed in float32
    assert (found - expected).norm() < bound * expected.norm()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_sdpa_in_a_problem_goes_by_tiles(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = product(model_of(kind, "sdpa"), batch())
    monkeypatch.setattr("hessblocks.curvature.closed.softmax.LONG", 1)
    found = product(model_of(kind, "sdpa"), batch())
    bound = 1e-12 if kind == "gpt2" else 1e-6
    assert (found - expected).norm() < bound * expected.norm()


def test_an_argument_that_tiles_do_not_know_is_refused() -> None:
    heads = torch.ones(1, 2, 3, 4)
    with pytest.raises(ArgumentError, match=r"attn_implementation: .*position_bias"):
        registered_attention(nn.Identity(), heads, heads, heads, None, position_bias=heads)


def test_long_contexts_need_no_square() -> None:
    peaks = []
    for long in (False, True):
        model = model_of("gpt2", "sdpa").float()
        model.transformer.wpe = nn.Embedding(600, 16)
        data = {"input_ids": torch.randint(3, 13, (1, 600))}
        with LiveBytes() as live, pytest.MonkeyPatch.context() as patch:
            patch.setattr("hessblocks.curvature.closed.softmax.LONG", 512 if long else 10**6)
            group = hb.parameter_groups(model, "tensor")["transformer.wte.weight"]
            _ = hb.Hessian(hb.Problem(model, data), group) @ torch.ones(group.size)
        peaks.append(live.peak)
    assert peaks[1] < peaks[0] / 2
