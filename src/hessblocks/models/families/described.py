"""Describe the layers of each family as our blocks, from its configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hessblocks.blocks import (
    MLP,
    Attention,
    BlockConfig,
    Branch,
    Dense,
    LayerNorm,
    LearnedPosition,
    NoNorm,
    RMSNorm,
    RotaryPosition,
)
from hessblocks.errors import ArgumentError
from hessblocks.models.families.tensors import GPT2, GPT_NEOX, LLAMA, Tensors

ACTIVATIONS = {
    **{name: name for name in ("silu", "gelu", "relu")},
    "swish": "silu",
    "relu2": "relu-squared",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu-tanh"),
}
"""Their names of activations → ours."""
SLIDING = "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class Family:
    """Kind of pretrained model."""

    blocks: Callable[[Any], list[BlockConfig]]
    """From its configuration to the block of each layer."""
    tensors: Tensors
    """Names of its weights."""


def _sizes(config: Any) -> dict[str, Any]:
    """Sizes of a block; what is as it would be without being said is left out."""
    width, heads = config.hidden_size, config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None)
    head_width = getattr(config, "head_dim", None)
    return {
        "width": width,
        "heads": heads,
        "key_value_heads": None if groups == heads else groups,
        "head_width": None if head_width == width / heads else head_width,
    }


def _activation(config: Any, name: str) -> str:
    found = getattr(config, name)
    if found not in ACTIVATIONS:
        raise unfit(config, f"{name}={found!r}, known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[found]


def _rotary(config: Any) -> RotaryPosition:
    given = config.rope_parameters
    if (kind := given.get("rope_type", "default")) != "default":
        raise unfit(config, f"rope_type={kind!r}: positions are turned without scaling alone")
    share = given.get("partial_rotary_factor", 1.0) if config.model_type == "gpt_neox" else 1.0
    return RotaryPosition(base=float(given["rope_theta"]), share=float(share))


def _llama(config: Any) -> list[BlockConfig]:
    """Llama, Mistral, Qwen2 and Qwen3."""
    kind = config.model_type
    bias = bool(getattr(config, "attention_bias", kind == "qwen2"))
    norm = RMSNorm(eps=config.rms_norm_eps)
    read, hidden = Dense(bias=bias), Dense(bias=bool(getattr(config, "mlp_bias", False)))
    block = BlockConfig(
        **_sizes(config),
        mlp_width=config.intermediate_size,
        norm=norm,
        final_norm=norm,
        position=_rotary(config),
        attention=Attention(
            query=read,
            key=read,
            value=read,
            projection=Dense(bias=bias and kind != "qwen2"),
            query_key_norm=norm if kind == "qwen3" else NoNorm(),
        ),
        mlp=MLP(
            activation=_activation(config, "hidden_act"), gated=True, input=hidden, output=hidden
        ),
    )
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or [SLIDING] * config.num_hidden_layers
    seen = [window if one == SLIDING else None for one in types]
    return [block.replace(attention=block.attention.replace(window=one)) for one in seen]


def _gpt2(config: Any) -> list[BlockConfig]:
    if config.add_cross_attention:
        raise unfit(config, "add_cross_attention=True: our blocks attend to their own tokens")
    norm, dense = LayerNorm(eps=config.layer_norm_epsilon), Dense(bias=True)
    block = BlockConfig(
        **_sizes(config),
        mlp_width=config.n_inner or 4 * config.n_embd,
        norm=norm,
        final_norm=norm,
        position=LearnedPosition(),
        attention=Attention(query=dense, key=dense, value=dense, projection=dense),
        mlp=MLP(activation=_activation(config, "activation_function"), input=dense, output=dense),
    )
    unscaled = 1.0 if config.scale_attn_weights else block.resolved_head_width**-0.5
    by_layer = config.scale_attn_by_inverse_layer_idx
    temperatures = [unscaled * (layer + 1 if by_layer else 1) for layer in range(config.n_layer)]
    return [
        block.replace(attention=block.attention.replace(temperature=one)) for one in temperatures
    ]


def _gpt_neox(config: Any) -> list[BlockConfig]:
    norm, dense = LayerNorm(eps=config.layer_norm_eps), Dense(bias=True)
    own = Dense(bias=config.attention_bias)
    parallel: dict[str, Any] = {
        "layout": "parallel",
        "mlp_norm": norm,
        "mlp_branch": Branch(skip=0.0),
    }
    block = BlockConfig(
        **_sizes(config),
        **(parallel if config.use_parallel_residual else {}),
        mlp_width=config.intermediate_size,
        norm=norm,
        final_norm=norm,
        position=_rotary(config),
        attention=Attention(query=own, key=own, value=own, projection=own),
        mlp=MLP(activation=_activation(config, "hidden_act"), input=dense, output=dense),
    )
    return [block] * config.num_hidden_layers


FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), Family(blocks=_llama, tensors=LLAMA)),
    "gpt2": Family(blocks=_gpt2, tensors=GPT2),
    "gpt_neox": Family(blocks=_gpt_neox, tensors=GPT_NEOX),
}
"""By the `model_type` of the configuration."""


def family_of(config: Any) -> Family:
    """Look a family up by its configuration.

    Returns:
        How its layers are described.

    Raises:
        ArgumentError: an unknown one; the known ones are listed.
    """
    kind = getattr(config, "model_type", type(config).__name__)
    if kind not in FAMILIES:
        raise ArgumentError(
            f"model: a model of {kind} cannot become blocks; known are {', '.join(FAMILIES)}"
        )
    return FAMILIES[kind]


def unfit(config: Any, what: str) -> ArgumentError:
    """Make an error about a part that our blocks do not have."""
    return ArgumentError(f"model: a model of {config.model_type} with {what}, cannot become blocks")
