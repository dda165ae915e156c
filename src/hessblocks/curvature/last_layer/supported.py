"""Locate the last attention of a known architecture, and check that the closed form supports it.

It must describe how the model's outputs depend on its weights. A comparison of outputs cannot show
this. An adapter that starts at zero, a pruned or reparametrised matrix or a parameter with two uses
gives the same outputs, but other derivatives.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hessblocks.architectures import ARCHITECTURES, heads_of
from hessblocks.curvature.closed import Watch, spelled, swap_activations
from hessblocks.curvature.model_state import check_contexts, evaluation_mode, exclusive
from hessblocks.curvature.products import uncompiled
from hessblocks.errors import ArgumentError

ELSEWHERE = "use hessblocks.Hessian for this model"
"""Advice for models without a closed form."""


def check_model(model: nn.Module) -> None:
    """Check that the closed form supports a model.

    Raises:
        ArgumentError: half or mixed precision, autocast, `parametrize.cached()`, weights without
            values, or trained weights with two uses (other than embedding and unembedding).
    """
    parameters = list(model.parameters())
    if not parameters:
        raise ArgumentError("model: it has no parameters")
    precisions = {p.dtype for p in parameters}
    half = precisions - {torch.float32, torch.float64}
    if half:
        raise ArgumentError(
            f"model: the closed form expects single or double precision, got {half.pop()}; use "
            "model.float()"
        )
    if len(precisions) > 1:
        raise ArgumentError(
            "model: the closed form expects one precision, got single and double; use "
            "model.double()"
        )
    if any(p.is_meta for p in parameters):
        raise ArgumentError(
            "model: its weights have no values here (meta device, offloaded); load them"
        )
    if any(p.is_inference() for p in parameters):
        raise ArgumentError("model: it was made in inference mode; make or load it outside")
    check_contexts(model, parameters[0].device)
    _check_ties(model)


def _check_ties(model: Any) -> None:
    ends = {
        id(getattr(getattr(model, name)(), attribute, None))
        for name in ("get_input_embeddings", "get_output_embeddings")
        if hasattr(model, name)
        for attribute in ("weight", "bias")
    }
    uses: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            uses.setdefault(id(parameter), []).append(name)
    for identity, names in uses.items():
        if len(names) > 1 and (identity not in ends or len(names) > 2):
            raise ArgumentError(
                f"model: {names[0]!r} and {names[1]!r} are one weight; the closed form expects one "
                f"use of each; {ELSEWHERE}"
            )


def check_linear(name: str, module: nn.Module | None) -> None:
    """Check that a layer computes `x W + b`, where W and b are parameters, both trained or neither.

    Args:
        name: name of the layer, for the message.
        module: `nn.Linear` or GPT-2's `Conv1D`, or a subclass with the same forward pass.

    Raises:
        ArgumentError: an adapter, a pruned or reparametrised weight, another layer, or only one of
            weight and bias is trained.
    """
    forward: Any = getattr(type(module), "forward", None)
    plain = forward in (nn.Linear.forward, Conv1D.forward) and "forward" not in vars(module)
    if module is None or not plain or "weight" not in module._parameters:
        raise uncovered(
            f"expects {name} to be a plain linear layer, got {type(module).__name__} (not an "
            "adapter, nor pruned or reparametrised weights)"
        )
    trained = {p.requires_grad for p in module.parameters(recurse=False)}
    if len(trained) > 1:
        raise uncovered(f"expects weight and bias of {name} to be trained both or neither")


def uncovered(limit: str) -> ArgumentError:
    """Make an error with a limit of the closed form, and advice."""
    return ArgumentError(f"model: the closed form {limit}; {ELSEWHERE}")


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Enter evaluation mode, eager and with gradients, with closed-form activations.

    On exit the model's state is restored.
    """
    device = next(model.parameters()).device.type
    with (
        exclusive(model),
        torch.inference_mode(False),
        torch.autocast(device, enabled=False),
        evaluation_mode(model) as modules,
        uncompiled(),
        spelled(),
    ):
        swap_activations(modules, Watch())
        yield


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
                matrices[piece.role] = fused[:, piece.indices.to(fused.device)]
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
