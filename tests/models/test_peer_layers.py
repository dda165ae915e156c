"""Blocks of newer slots equal transformers' own layers of the same mathematics, weights copied."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma2Config, Olmo2Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer
from transformers.models.olmo2.modeling_olmo2 import Olmo2DecoderLayer

from hessblocks.blocks import MLP, Attention, BlockConfig, Branch, Context, NoNorm, RMSNorm
from hessblocks.blocks.block import Block
from hessblocks.curvature.verification import without_casts

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
    norms = {
        "attention_norm": "input_layernorm",
        "attention_branch.norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_branch.norm": "post_feedforward_layernorm",
    }
    copy(ours, theirs, norms, shift=1.0)
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
