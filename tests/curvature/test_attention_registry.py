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
from tests.breadth import everyday
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


def plain_and_tiled(
    monkeypatch: pytest.MonkeyPatch, kind: str, implementation: str
) -> tuple[Tensor, Tensor]:
    expected = product(model_of(kind, implementation), batch())
    monkeypatch.setattr("hessblocks.curvature.closed.softmax.LONG", 1)
    return expected, product(model_of(kind, implementation), batch())


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_model_computes_the_same_by_name(kind: str) -> None:
    eager, ours = (
        model_of(kind, name).float()(**batch()).logits for name in ("eager", "second_order")
    )
    real = batch()["attention_mask"].bool()
    assert (eager - ours)[real].abs().max() < 1e-5 * eager.abs().max()


@pytest.mark.parametrize("kind", everyday(CONFIGS, "gpt2", "gemma2", "gpt_oss"))
def test_eager_attention_in_a_problem_goes_by_tiles(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    from hessblocks.curvature.attention import call as module

    attend = module.attend_twice
    monkeypatch.setattr(
        module, "attend_twice", lambda *a, **k: [called.append(1), attend(*a, **k)][1]
    )
    expected, found = plain_and_tiled(monkeypatch, kind, "eager")
    assert called
    bound = 1e-12 if kind == "gpt2" else 1e-5  # the others' softmax is computed in float32
    assert (found - expected).norm() < bound * expected.norm()
    assert transformers.AttentionInterface.get_interface.__module__.startswith("transformers")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_sdpa_in_a_problem_goes_by_tiles(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, found = plain_and_tiled(monkeypatch, kind, "sdpa")
    bound = 1e-12 if kind == "gpt2" else 1e-6
    assert (found - expected).norm() < bound * expected.norm()


def other_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any
) -> tuple[Tensor, Tensor]:
    """No softmax attention at all."""
    weights = (query @ key.mT).sigmoid()
    return (weights @ value).transpose(1, 2), weights


def test_a_function_that_is_another_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.models.gpt2.modeling_gpt2 as gpt2

    monkeypatch.setattr(gpt2, "eager_attention_forward", other_attention)
    expected, found = plain_and_tiled(monkeypatch, "gpt2", "eager")
    assert torch.equal(expected, found)


def test_weights_that_are_asked_for_keep_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(outputs: Any, batch: Any) -> Tensor:
        weights = outputs.attentions[0].detach().square().mean((1, 2, 3))
        return outputs.logits.square().mean((1, 2)) * weights

    def run() -> Tensor:
        model = model_of("gpt2", "eager")
        group = hb.parameter_groups(model, "tensor")["transformer.wte.weight"]
        problem = hb.Problem(model, {**batch(), "output_attentions": True}, loss)
        return hb.Hessian(problem, group) @ torch.ones(group.size, dtype=torch.float64)

    expected = run()
    monkeypatch.setattr("hessblocks.curvature.closed.softmax.LONG", 1)
    assert torch.equal(run(), expected)


def test_an_argument_that_tiles_do_not_know_is_refused() -> None:
    heads = torch.ones(1, 2, 3, 4)
    with pytest.raises(ArgumentError, match=r"attn_implementation: .*position_bias"):
        registered_attention(nn.Identity(), heads, heads, heads, None, position_bias=heads)


@pytest.mark.parametrize("implementation", everyday(["sdpa", "eager"], "sdpa"))
def test_long_contexts_need_no_square(implementation: str) -> None:
    peaks = []
    for long in (False, True):
        model = model_of("gpt2", implementation).float()
        model.transformer.wpe = nn.Embedding(600, 16)
        data = {"input_ids": torch.randint(3, 13, (1, 600))}
        with LiveBytes() as live, pytest.MonkeyPatch.context() as patch:
            patch.setattr("hessblocks.curvature.closed.softmax.LONG", 512 if long else 10**6)
            group = hb.parameter_groups(model, "tensor")["transformer.wte.weight"]
            _ = hb.Hessian(hb.Problem(model, data), group) @ torch.ones(group.size)
        peaks.append(live.peak)
    assert peaks[1] < peaks[0] / 2
