"""Attribute paths of Hugging Face models around their last attention, per architecture.

Letters: D width, H heads, G key-value heads, K head width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hessblocks.curvature.last_layer.supported import uncovered
from hessblocks.errors import ArgumentError

Weights = Mapping[str, Float[Tensor, "rows columns"]]
"""Weights of query, key, value and projection, (inputs, outputs); a bias is the last row."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Attribute paths of the parts of one architecture."""

    layers: str
    """Path from the model to its list of layers."""
    behind: tuple[str, ...]
    """Paths from the model to the modules after the last layer; the last may hold the output
    layer."""
    attention: str = "self_attn"
    """Path from a layer to its attention, whose first output is the attention's output."""
    causal: bool = True
    """Whether a token attends only to itself and earlier tokens."""
    read: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """Paths from the attention to query, key and value; one path if they are fused."""
    write: str = "o_proj"
    """Path from the attention to the projection."""
    apart: bool = False
    """Whether `write` starts at the layer, not at the attention."""
    norms: tuple[str, str] = ("q_norm", "k_norm")
    """Paths from the attention to the norms of queries and keys, if it has them."""
    interleaved: bool = False
    """Whether a fused weight is ordered [head][query, key, value], not [query | key | value]."""
    single: bool = False
    """Whether rotary embeddings are computed in float32, whatever the weights' dtype."""
    expected: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration, with the only value that the closed form supports."""

    def written(self, layer: Any) -> Any:
        """Return the module of the projection."""
        holder = layer if self.apart else layer.get_submodule(self.attention)
        return holder.get_submodule(self.write)

    def weights(self, layer: Any, heads: int) -> Weights:
        """Read the four weights; split a fused one."""
        attention = layer.get_submodule(self.attention)
        read = [matrix(attention.get_submodule(name)) for name in self.read]
        if self.interleaved:
            apart = read[0].unflatten(1, (heads, 3, -1))
            read = [apart[:, :, role].flatten(1) for role in range(3)]
        elif len(read) == 1:
            read = list(read[0].chunk(3, dim=1))
        return dict(zip(ROLES, (*read, matrix(self.written(layer))), strict=True))

    def trained(self, layer: Any) -> tuple[str, ...]:
        """List the roles with trainable weights."""
        attention = layer.get_submodule(self.attention)
        read = [attention.get_submodule(name) for name in self.read] * (3 // len(self.read))
        modules = zip(ROLES, (*read, self.written(layer)), strict=True)
        return tuple(role for role, module in modules if is_trained(module))

    def check(self, model: Any) -> None:
        """Check that the closed form supports the head and the configuration.

        Raises:
            ArgumentError: an unsupported head, or an unsupported field with its expected value.
        """
        config = model.config
        known = {name for name, _ in model.named_modules()}
        if not {self.layers, *self.behind} <= known:
            raise uncovered(
                f"of {config.model_type} expects {', '.join(self.behind)} after its layers, which "
                f"{type(model).__name__} has not"
            )
        for name, expected in self.expected.items():
            if (found := getattr(config, name, expected)) != expected:
                raise uncovered(
                    f"expects {name}={expected!r} in the configuration of {config.model_type}, got "
                    f"{found!r}"
                )


ROLES = ("query", "key", "value", "projection")

_LLAMA = Family(layers="model.layers", behind=("model.norm",))
_BERT = Family(
    layers="bert.encoder.layer",
    behind=("cls.predictions",),
    attention="attention.self",
    read=("query", "key", "value"),
    write="attention.output.dense",
    apart=True,
    causal=False,
    expected={"is_decoder": False, "add_cross_attention": False},
)
FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        layers="transformer.h",
        behind=("transformer.ln_f",),
        attention="attn",
        read=("c_attn",),
        write="c_proj",
        expected={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
    ),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma"), _LLAMA),
    "gemma3_text": replace(
        _LLAMA, expected={"attn_logit_softcapping": None, "final_logit_softcapping": None}
    ),
    "phi": Family(
        layers="model.layers",
        behind=("model.final_layernorm",),
        write="dense",
        norms=("q_layernorm", "k_layernorm"),
    ),
    "gpt_neox": Family(
        layers="gpt_neox.layers",
        behind=("gpt_neox.final_layer_norm",),
        attention="attention",
        read=("query_key_value",),
        write="dense",
        interleaved=True,
    ),
    "opt": Family(
        layers="model.decoder.layers",
        behind=("model.decoder.final_layer_norm",),
        write="out_proj",
        expected={"do_layer_norm_before": True, "_remove_final_layer_norm": False},
    ),
    "bert": _BERT,
    "roberta": replace(_BERT, layers="roberta.encoder.layer", behind=("lm_head",)),
    "modernbert": Family(
        layers="model.layers",
        behind=("model.final_norm", "head"),
        attention="attn",
        read=("Wqkv",),
        write="Wo",
        causal=False,
        single=True,
    ),
    "vit": Family(
        layers="vit.layers", behind=("vit.layernorm",), attention="attention", causal=False
    ),
}
"""Families by `model_type` of the configuration."""


def output_layer(model: Any) -> Any:
    """Find the layer that computes the logits.

    Returns:
        The module.

    Raises:
        ArgumentError: the model has no such layer.
    """
    found = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    found = getattr(model, "classifier", None) if found is None else found
    if found is None:
        raise ArgumentError(
            "model: expected a language model with a head or an image classifier, got "
            f"{type(model).__name__}; use AutoModelForCausalLM, AutoModelForMaskedLM, "
            "AutoModelForImageClassification or hessblocks.build"
        )
    return found


def is_trained(module: nn.Module) -> bool:
    """Tell whether any of a module's parameters is trainable."""
    return any(parameter.requires_grad for parameter in module.parameters())


def matrix(module: Any) -> Float[Tensor, "rows columns"]:
    """Read the weight of a linear layer as (inputs, outputs), with a bias as the last row."""
    weight = module.weight if isinstance(module, Conv1D) else module.weight.T
    bias = [] if module.bias is None else [module.bias[None]]
    return torch.cat([weight, *bias]).detach()
