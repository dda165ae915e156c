"""Tiny pretrained models of every family, and what they compute in double precision.

Models of transformers compute norms and rotary angles in single precision whatever their weights
have; `doubled` lifts these to double precision, as an oracle.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3

VOCABULARY = 37
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_GROUPED = {"num_key_value_heads": 2}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_positions": 32,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 6,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_SIZES, **_GROUPED, tie_word_embeddings=True),
    "llama, biases, untied": lambda: LlamaConfig(
        **_SIZES, attention_bias=True, mlp_bias=True, hidden_act="gelu_pytorch_tanh"
    ),
    "llama, narrow heads": lambda: LlamaConfig(**_SIZES, **_GROUPED, head_dim=6),
    "mistral": lambda: MistralConfig(**_SIZES, **_GROUPED, sliding_window=4),
    "mistral, tied": lambda: MistralConfig(
        **_SIZES, num_key_value_heads=6, sliding_window=None, tie_word_embeddings=True
    ),
    "qwen2": lambda: Qwen2Config(**_SIZES, **_GROUPED, tie_word_embeddings=True),
    "qwen2, windows": lambda: Qwen2Config(
        **_SIZES, **_GROUPED, use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    "qwen3": lambda: Qwen3Config(**_SIZES, **_GROUPED, head_dim=8, attention_bias=True),
    "qwen3, tied": lambda: Qwen3Config(**_SIZES, **_GROUPED, head_dim=4, tie_word_embeddings=True),
    "gpt2": lambda: GPT2Config(**_GPT2),
    "gpt2, untied, by layer": lambda: GPT2Config(
        **_GPT2,
        n_inner=20,
        scale_attn_by_inverse_layer_idx=True,
        scale_attn_weights=False,
        activation_function="relu",
        tie_word_embeddings=False,
    ),
    "gpt_neox": lambda: GPTNeoXConfig(
        **_SIZES,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    ),
    "gpt_neox, sequential, tied": lambda: GPTNeoXConfig(
        **_SIZES,
        use_parallel_residual=False,
        attention_bias=False,
        tie_word_embeddings=True,
        hidden_act="gelu_fast",
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
        },
    ),
}
"""Name → configuration; no two weights are alike in what they do."""


def pretrained(name: str) -> PreTrainedModel:
    """A model with every parameter moved, so that no gain is 1 and no shift 0."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]()).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def _norm(self: Any, x: Tensor) -> Tensor:
    return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


def _angles(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    given, width = self.config.rope_parameters, self.inv_freq.numel()
    places = torch.arange(width, dtype=torch.float64) / width
    halves = position_ids[..., None] * given["rope_theta"] ** -places
    both = torch.cat([halves, halves], dim=-1)
    return both.cos(), both.sin()


def _eager(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    groups = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    scores = scaling * query @ key.transpose(-1, -2)
    return ((scores + mask).softmax(-1) @ value).transpose(1, 2), None


@contextmanager
def doubled() -> Iterator[None]:
    """Let norms and angles of these models be computed in double precision."""
    with (
        patch.object(llama.LlamaRMSNorm, "forward", _norm),
        patch.object(mistral.MistralRMSNorm, "forward", _norm),
        patch.object(qwen2.Qwen2RMSNorm, "forward", _norm),
        patch.object(qwen3.Qwen3RMSNorm, "forward", _norm),
        patch.object(llama.LlamaRotaryEmbedding, "forward", _angles),
        patch.object(mistral.MistralRotaryEmbedding, "forward", _angles),
        patch.object(qwen2.Qwen2RotaryEmbedding, "forward", _angles),
        patch.object(qwen3.Qwen3RotaryEmbedding, "forward", _angles),
        patch.object(neox.GPTNeoXRotaryEmbedding, "forward", _angles),
    ):
        yield
