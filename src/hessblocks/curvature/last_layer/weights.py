"""Locate the last attention of a known architecture, and read its weights.

Letters: D width.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hessblocks.architectures import ARCHITECTURES, heads_of
from hessblocks.curvature.last_layer.supported import check_linear, uncovered
from hessblocks.errors import ArgumentError

ROLES = ("query", "key", "value", "projection")


@dataclass(frozen=True, kw_only=True, eq=False)
class LastModules:
    """Modules of a model from its last layer on."""

    layer: Any
    """The last layer."""
    attention: Any
    """Attention in that layer, whose first output is the attention's output."""
    linear: Mapping[str, Any]
    """Linear layers by role; one without a role holds query, key and value."""
    apart: bool
    """Whether the projection is no part of `attention`."""
    behind: tuple[nn.Module, ...]
    """Modules after the last layer; the last may hold the output layer."""

    def weights(self, config: Any) -> dict[str, Float[Tensor, "rows columns"]]:
        """Read the four weights, (inputs, outputs); a bias is the last row."""
        matrices = {role: matrix(module) for role, module in self.linear.items()}
        if "" in matrices:
            fused = matrices.pop("")
            (packing,) = {
                rule.packing for rule in ARCHITECTURES[config.model_type].rules if not rule.role
            }
            assert packing is not None
            for piece in packing(fused.shape[1], heads_of(config)):
                matrices[piece.role] = fused[:, piece.indices]
        return {role: matrices[role] for role in ROLES}

    def trained(self) -> tuple[str, ...]:
        """List the roles with trainable weights."""
        return tuple(
            role for role in ROLES if is_trained(self.linear.get(role, self.linear.get("")))
        )


def last_modules(model: Any) -> LastModules:
    """Locate the modules of a model whose architecture is in `ARCHITECTURES`.

    Returns:
        The modules.

    Raises:
        ArgumentError: the head, a field of the configuration or a layer is not supported.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    modules = dict(model.named_modules())
    if not modules.keys() >= set(architecture.behind):
        raise uncovered(
            f"of {config.model_type} expects {', '.join(architecture.behind)} after its layers, "
            f"which {type(model).__name__} lacks"
        )
    for name, expected in architecture.expected.items():
        if (value := getattr(config, name, expected)) != expected:
            raise uncovered(
                f"expects {name}={expected!r} in the configuration of {config.model_type}, got "
                f"{value!r}"
            )
    paths: dict[str, str] = {}
    for name in modules:
        for rule in architecture.rules:
            match = re.fullmatch(rule.pattern, f"{name}.weight")
            if match and rule.packing is not None:
                paths[rule.role] = name  # of the last layer, once all are met
                layer = name[: match.end("layer")]
                break
    attention = paths.get("query", paths.get("", "")).rpartition(".")[0]
    for name in paths.values():
        if not name.startswith(f"{layer}."):
            raise uncovered("expects query, key, value and projection in the last layer")
        check_linear(name.rpartition(".")[2], modules[name])
    return LastModules(
        layer=modules[layer],
        attention=modules[attention],
        linear={role: modules[name] for role, name in paths.items()},
        apart=not paths["projection"].startswith(f"{attention}."),
        behind=tuple(modules[name] for name in architecture.behind),
    )


def output_layer(model: Any) -> Any:
    """Find the layer that computes the logits.

    Returns:
        The module.

    Raises:
        ArgumentError: the model has no such layer.
    """
    layer = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    layer = getattr(model, "classifier", None) if layer is None else layer
    if layer is None:
        raise ArgumentError(
            "model: expected a language model with a head or an image classifier, got "
            f"{type(model).__name__}; use AutoModelForCausalLM, AutoModelForMaskedLM, "
            "AutoModelForImageClassification or hessblocks.build"
        )
    return layer


def is_trained(module: nn.Module) -> bool:
    """Tell whether any of a module's parameters is trainable."""
    return any(parameter.requires_grad for parameter in module.parameters())


def matrix(module: Any) -> Float[Tensor, "rows columns"]:
    """Read the weight of a linear layer as (inputs, outputs), with a bias as the last row."""
    weight = module.weight if isinstance(module, Conv1D) else module.weight.T
    bias = [] if module.bias is None else [module.bias[None]]
    return torch.cat([weight, *bias]).detach()
