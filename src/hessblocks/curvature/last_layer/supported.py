"""Check that the closed form describes how a model's outputs depend on its weights.

A comparison of outputs cannot show this. An adapter that starts at zero, a pruned or reparametrised
matrix or a parameter with two uses gives the same outputs, but other derivatives.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

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
            f"expects {name} to be a plain linear layer, got {type(module).__name__} (adapters, "
            "pruned and reparametrised weights are none)"
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
        evaluation_mode(model),
        uncompiled(),
        spelled(),
    ):
        swap_activations(model, Watch())
        yield
