"""Blocks of newer slots equal transformers' own layers of the same mathematics, weights copied."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import BloomConfig, Gemma2Config, Gemma2ForCausalLM, GptOssConfig, Olmo2Config
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention
from transformers.models.olmo2.modeling_olmo2 import Olmo2DecoderLayer

import hessblocks as hb
from hessblocks.blocks import (
    MLP,
    Attention,
    BlockConfig,
    Branch,
    Context,
    Dense,
    Derf,
    NoNorm,
    RMSNorm,
    Sink,
)
from hessblocks.blocks.block import Block
from tests.curvature.architectures import without_casts

WIDTH, TOKENS = 16, 7
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 12,
    "rms_norm_eps": 1e-6,
    "attn_implementation": "sdpa",
}
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-12}
dtypes = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
EPS = 1e-6
NORMED = Branch(norm=RMSNorm(eps=EPS))
GEMMA_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_branch.norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_branch.norm": "post_feedforward_layernorm",
}


def stirred(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    module = module.to(dtype).eval()
    for parameter in module.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return module


def swiglu(block: dict[str, Any], activation: str) -> BlockConfig:
    sizes = {"width": WIDTH, "heads": 4, "key_value_heads": 2, "mlp_width": 12}
    mlp = MLP(activation=activation, gated=True)
    return BlockConfig(**sizes, mlp=mlp, attention_branch=NORMED, mlp_branch=NORMED, **block)


def copy(ours: Block, theirs: Any, norms: dict[str, str], shift: float = 0.0) -> None:
    """Weights of a Llama-like layer; `shift` is what its norms add to their gains."""
    modules = {f"attention.{n}": f"self_attn.{n[0]}_proj" for n in ("query", "key", "value")}
    modules |= {"attention.projection": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj"}
    modules |= {"mlp.input": "mlp.up_proj", "mlp.output": "mlp.down_proj"}
    with torch.no_grad():
        for name, other in {**modules, **norms}.items():
            added = shift if name in norms else 0.0
            weight = theirs.get_submodule(other).weight + added
            ours.get_submodule(name).weight.copy_(weight)


def both(ours: Block, theirs: Any, dtype: torch.dtype, **keywords: Any) -> tuple[Tensor, Tensor]:
    """Outputs of both layers for the same tokens, under a causal mask."""
    x = torch.randn(2, TOKENS, WIDTH, dtype=dtype)
    rotation = ours_rotation(dtype)
    mask = torch.full((TOKENS, TOKENS), -torch.inf, dtype=dtype).triu(1)[None, None]
    turned = (rotation[0][:, 0], rotation[1][:, 0])
    with torch.no_grad(), without_casts(theirs):
        expected = theirs(x, position_embeddings=turned, attention_mask=mask, **keywords)
        found = ours(x, Context(rotation=rotation))
    return found, expected


def ours_rotation(dtype: torch.dtype) -> Any:
    return BlockConfig().position.rotation(torch.arange(TOKENS)[None], 4, dtype)


def assert_alike(found: Tensor, expected: Tensor) -> None:
    near = TOLERANCES[found.dtype] * float(expected.abs().max())
    assert (found - expected).abs().max() <= near


@dtypes
def test_norms_before_and_after_a_branch_are_those_of_gemma_2(dtype: torch.dtype) -> None:
    config = Gemma2Config(**SIZES, attn_logit_softcapping=None, query_pre_attn_scalar=4)
    theirs = stirred(Gemma2DecoderLayer(config, layer_idx=1), dtype)
    theirs.mlp.act_fn = nn.GELU()
    block = swiglu({"norm": RMSNorm(eps=EPS)}, "gelu")
    ours = Block(block, 1, 2).to(dtype)
    copy(ours, theirs, GEMMA_NORMS, shift=1.0)
    assert_alike(*both(ours, theirs, dtype))


@dtypes
def test_norms_after_a_branch_alone_are_those_of_olmo_2(dtype: torch.dtype) -> None:
    """But for its norm over all queries at once, which is taken off."""
    sizes = {name: value for name, value in SIZES.items() if name != "head_dim"}
    theirs = stirred(Olmo2DecoderLayer(Olmo2Config(**sizes), layer_idx=1), dtype)
    theirs.self_attn.q_norm = theirs.self_attn.k_norm = nn.Identity()
    ours = Block(swiglu({"norm": NoNorm(), "attention": Attention()}, "silu"), 1, 2).to(dtype)
    norms = {"attention_branch.norm": "post_attention_layernorm"}
    copy(ours, theirs, {**norms, "mlp_branch.norm": "post_feedforward_layernorm"})
    assert_alike(*both(ours, theirs, dtype))


@dtypes
def test_softcaps_of_scores_and_logits_are_those_of_gemma_2(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their softmax is in float32, but for the test of the mathematics."""
    softmax = F.softmax
    monkeypatch.setattr(F, "softmax", lambda scores, dim, dtype=None: softmax(scores, dim))
    sizes = {**SIZES, "attn_implementation": "eager"}
    config = Gemma2Config(**sizes, attn_logit_softcapping=0.5, query_pre_attn_scalar=4)
    theirs = stirred(Gemma2DecoderLayer(config, layer_idx=1), dtype)
    theirs.mlp.act_fn = nn.GELU()
    capped = {"norm": RMSNorm(eps=EPS), "attention": Attention(softcap=0.5)}
    ours = Block(swiglu(capped, "gelu"), 1, 2).to(dtype)
    copy(ours, theirs, GEMMA_NORMS, shift=1.0)
    assert_alike(*both(ours, theirs, dtype))


@dtypes
def test_capped_logits_are_those_of_gemma_2(dtype: torch.dtype) -> None:
    ours = hb.build("pre-ln", depth=1, width=16, heads=4, vocab_size=9, slots=["logit_softcap=3"])
    stirred(ours, dtype)
    sizes: dict[str, Any] = {"num_hidden_layers": 1, "vocab_size": 9, "pad_token_id": 0}
    sizes |= {**SIZES, "attn_implementation": "eager"}
    config = Gemma2Config(**sizes, final_logit_softcapping=3.0)
    theirs = Gemma2ForCausalLM(config).to(dtype)
    tokens = torch.randint(9, (2, 5))
    with torch.no_grad():
        theirs.lm_head.weight.copy_(ours.lm_head.weight)
        hidden = ours.model(tokens).last_hidden_state
        theirs.model.forward = lambda **_: BaseModelOutputWithPast(last_hidden_state=hidden)
        assert_alike(ours(tokens).logits, theirs(tokens).logits)
        assert ours(tokens).logits.abs().max() <= 3 < ours.lm_head(hidden).abs().max()


@dtypes
@pytest.mark.parametrize("window", [None, 3])
def test_sinks_are_those_of_gpt_oss(dtype: torch.dtype, window: int | None) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "attn_implementation"}
    config = GptOssConfig(**sizes, attn_implementation="eager", attention_bias=False)
    theirs = stirred(GptOssAttention(config, layer_idx=0), dtype)
    theirs.sinks.data.normal_()
    block = swiglu({"attention": Attention(sink=Sink(), window=window)}, "silu")
    ours = Block(block, 1, 2).attention.to(dtype)
    with torch.no_grad():
        for name in ("query", "key", "value", "projection"):
            weight = theirs.get_submodule(f"{name[0].replace('p', 'o')}_proj").weight
            ours.get_submodule(name).weight.copy_(weight)
        ours.sink.scores.copy_(theirs.sinks)
        x, rotation = torch.randn(2, TOKENS, WIDTH, dtype=dtype), ours_rotation(dtype)
        seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
        seen = seen if window is None else seen.triu(1 - window)
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)[None, None]
        half = [table[:, 0, :, :2] for table in rotation]
        expected = theirs(x, tuple(half), mask)[0]
        windows = {} if window is None else {window: seen[None, None]}
        assert_alike(ours(x, Context(rotation=rotation, windows=windows)), expected)


@dtypes
@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_is_that_of_bloom(
    dtype: torch.dtype, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax = F.softmax
    monkeypatch.setattr(F, "softmax", lambda scores, dim, dtype=None: softmax(scores, dim))
    config = BloomConfig(hidden_size=24, n_head=heads, attn_implementation="eager")
    theirs = stirred(BloomAttention(config, layer_idx=0), dtype)
    weights = dict.fromkeys(("query", "key", "value", "projection"), Dense(bias=True))
    sizes = {"width": 24, "heads": heads, "vocab_size": 9, "depth": 1}
    model = hb.build("pre-ln", position="alibi", attention=Attention(**weights), **sizes)
    ours = model.to(dtype).model.layers[0].attention
    fused = theirs.query_key_value
    with torch.no_grad():
        for place, name in enumerate(("query", "key", "value")):
            for of in ("weight", "bias"):
                own = getattr(fused, of).unflatten(0, (heads, 3, -1))[:, place].flatten(0, 1)
                getattr(ours.get_submodule(name), of).copy_(own)
        ours.projection.load_state_dict(theirs.dense.state_dict())
        seen: dict[str, Any] = {}
        ours.register_forward_hook(lambda module, x, output: seen.update(x=x[0], y=output))
        real = torch.tensor([[1] * TOKENS, [0, 0] + [1] * (TOKENS - 2)])
        model(torch.randint(9, (2, TOKENS)), attention_mask=real)
        hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril() & real.bool()[:, None, :]
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill(~hidden, torch.finfo(dtype).min)
        bias = build_alibi_tensor(real, heads, dtype)
        expected = theirs(seen["x"], torch.zeros_like(seen["x"]), bias, mask[:, None])[0]
    assert_alike(seen["y"][real.bool()], expected[real.bool()])


def test_derf_is_its_formula() -> None:
    norm = Derf(scale=0.7).build(5)
    with torch.no_grad():
        for number, parameter in enumerate(norm.parameters()):
            parameter.add_(0.1 * number + 0.2)
    x = torch.randn(3, 5)
    expected = norm.weight * torch.special.erf(norm.scale * x + norm.shift) + norm.bias
    assert torch.equal(norm(x), expected)
    assert sorted(name for name, _ in norm.named_parameters()) == [
        "bias",
        "scale",
        "shift",
        "weight",
    ]
