"""Describe Llamas with layers of different sizes as llama.cpp's architecture `deci`.

`deci` has numbers of heads, key heads and MLP units for each layer. A layer without heads has no
attention; one with heads but no key heads has a linear map in its place.

Source: llama.cpp, pull request 10669 (Nemotron, arXiv 2411.19146).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Shaped

from hessblocks.blocks import MLP, Attention, BlockConfig, RMSNorm, RotaryPosition
from hessblocks.errors import ArgumentError
from hessblocks.models import HessblocksForCausalLM

DECI = "deci"
OWN = ("width", "heads", "key_value_heads", "head_width", "mlp_width", "sub_blocks")
"""Fields in which layers may differ."""
TENSORS = {
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.projection": "attn_output",
    "mlp.gate": "ffn_gate",
    "mlp.input": "ffn_up",
    "mlp.output": "ffn_down",
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
}
"""llama.cpp's name of each part of a layer."""
OUTSIDE = {
    "model.token_embedding": "token_embd",
    "model.final_norm": "output_norm",
    "lm_head": "output",
}


def deci_fields(model: HessblocksForCausalLM) -> dict[str, Any]:
    """Turn the sizes of a model of Llama's blocks into fields of llama.cpp.

    Args:
        model: model whose layers may differ in heads and MLP units, or lack the attention.

    Returns:
        Key → value, as in `GgufHeader`.

    Raises:
        ArgumentError: `deci` cannot hold a layer; the message names the first, and its field.
    """
    blocks: list[Any] = model.config.blocks
    first = blocks[0]
    for number, block in enumerate(blocks):
        _check(number, block, first)
    width = np.uint32(first.resolved_head_width)
    fields = {
        "block_count": np.uint32(len(blocks)),
        "context_length": np.uint32(model.config.context),
        "embedding_length": np.uint32(first.width),
        "vocab_size": np.uint32(model.config.vocab_size),
        "feed_forward_length": [block.resolved_mlp_width for block in blocks],
        "attention.head_count": [b.heads if b.sub_blocks == "both" else 0 for b in blocks],
        "attention.head_count_kv": [b.resolved_key_value_heads * b.attends for b in blocks],
        "attention.key_length": width,
        "attention.value_length": width,
        "attention.layer_norm_rms_epsilon": np.float32(first.norm.eps),
        "rope.dimension_count": width,
        "rope.freq_base": np.float32(first.position.base),
    }
    return {f"{DECI}.{name}": value for name, value in fields.items()}


def _check(number: int, block: BlockConfig, first: BlockConfig) -> None:
    """Refuse a layer that llama.cpp's `deci` cannot hold."""
    sizes: Any = {name: getattr(block, name) for name in OWN}
    attends = block.sub_blocks == "mlp" or block.attends
    expected = BlockConfig(
        **sizes,
        norm=RMSNorm(eps=getattr(first.norm, "eps", 0.0)),
        mlp_norm=None if block.mlp_norm is None else first.norm,
        final_norm=first.norm,
        position=RotaryPosition(base=getattr(first.position, "base", 1.0)),
        attention=Attention() if attends else Attention(scores="none"),
        mlp=MLP(activation="silu", gated=True),
    )
    if block.sub_blocks == "attention":
        raise ArgumentError(
            f"--to gguf: layer {number} has no MLP, which llama.cpp's `deci` does not support"
        )
    fields = block.to_dict()
    for name, value in expected.to_dict().items():
        if fields[name] != value and (name, block.sub_blocks) != ("attention", "mlp"):
            raise ArgumentError(
                f"--to gguf: layer {number} is not one of Llama's: its {name} differs, and "
                "llama.cpp reads no other; give another --to (simplify: --even instead, whose "
                "result is a Llama that quantise writes)"
            )


def deci_tensors(
    model: HessblocksForCausalLM,
) -> dict[str, tuple[str, Shaped[np.ndarray, " rows"] | None]]:
    """Name the parameters of a model of Llama's blocks as llama.cpp does.

    Args:
        model: a model that `deci_fields` accepts.

    Returns:
        What `gguf_tensors` returns.
    """
    tensors: dict[str, tuple[str, Shaped[np.ndarray, " rows"] | None]] = {}
    for name, parameter in model.named_parameters():
        module, order = name.rpartition(".")[0], None
        if module in OUTSIDE:
            tensors[name] = f"{OUTSIDE[module]}.weight", None
            continue
        _, _, number, part = module.split(".", 3)
        if part in ("attention.query", "attention.key"):  # pairs that turn together are neighbours
            half = model.config.blocks[int(number)].resolved_head_width // 2
            order = np.arange(len(parameter)).reshape(-1, half, 2).swapaxes(1, 2).reshape(-1)
        tensors[name] = f"blk.{number}.{TENSORS[part]}.weight", order
    return tensors
