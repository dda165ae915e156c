"""Attribute paths of Hugging Face models around their last attention, kind by kind.

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
"""query, key, value and projection as (inputs, outputs), a bias as the last row."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Attribute paths of the parts of one kind of model."""

    layers: str
    """List of the layers, in the model."""
    behind: tuple[str, ...]
    """Modules after the last layer, in the model; the last may hold the output layer."""
    attention: str = "self_attn"
    """In a layer; returns its output first."""
    causal: bool = True
    """Whether a token sees those before it alone."""
    read: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """Modules of query, key and value in the attention; one where they are fused."""
    write: str = "o_proj"
    """Module of the projection, in the attention."""
    apart: bool = False
    """Whether the layer, not the attention, holds the projection."""
    norms: tuple[str, str] = ("q_norm", "k_norm")
    """Norms of each head's queries and keys in the attention, where it has them."""
    interleaved: bool = False
    """Whether a fused weight holds query, key and value head by head rather than one after the
    other."""
    single: bool = False
    """Whether the attention turns queries and keys in single precision, whatever the weights
    have."""
    expected: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration, and the only value that the closed form covers."""

    def written(self, layer: Any) -> Any:
        """Find the module of the projection."""
        holder = layer if self.apart else layer.get_submodule(self.attention)
        return holder.get_submodule(self.write)

    def weights(self, layer: Any, heads: int) -> Weights:
        """Read the four weights, cut apart where they are fused."""
        attention = layer.get_submodule(self.attention)
        read = [matrix(attention.get_submodule(name)) for name in self.read]
        if self.interleaved:
            apart = read[0].unflatten(1, (heads, 3, -1))
            read = [apart[:, :, role].flatten(1) for role in range(3)]
        elif len(read) == 1:
            read = list(read[0].chunk(3, dim=1))
        return dict(zip(ROLES, (*read, matrix(self.written(layer))), strict=True))

    def trained(self, layer: Any) -> tuple[str, ...]:
        """List the roles whose weights are trained."""
        attention = layer.get_submodule(self.attention)
        read = [attention.get_submodule(name) for name in self.read] * (3 // len(self.read))
        modules = zip(ROLES, (*read, self.written(layer)), strict=True)
        return tuple(role for role, module in modules if is_trained(module))

    def check(self, model: Any) -> None:
        """Refuse a head or a configuration that the closed form does not describe.

        Raises:
            ArgumentError: the head, or the field and the value it should have.
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
"""By the `model_type` of the configuration."""


def output_layer(model: Any) -> Any:
    """Find the layer that gives the logits.

    Returns:
        The module.

    Raises:
        ArgumentError: a model without.
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
    """Tell whether any of a module's parameters is trained."""
    return any(parameter.requires_grad for parameter in module.parameters())


def matrix(module: Any) -> Float[Tensor, "rows columns"]:
    """Read the weight of a linear layer as (inputs, outputs), a bias as its last row."""
    weight = module.weight if isinstance(module, Conv1D) else module.weight.T
    bias = [] if module.bias is None else [module.bias[None]]
    return torch.cat([weight, *bias]).detach()
