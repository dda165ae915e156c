"""Refuse models and active contexts in which curvature would be wrong or cannot be computed."""

import torch
from torch import nn
from torch.nn.utils import parametrize

from hessblocks.errors import ArgumentError


def check_contexts(model: nn.Module, device: torch.device) -> None:
    """Check that no active context changes the precision of passes or caches weights.

    Args:
        model: the model.
        device: the model's device.

    Raises:
        ArgumentError: torch.autocast or torch.nn.utils.parametrize.cached() is active.
    """
    if torch.is_autocast_enabled(device.type):
        raise ArgumentError(
            "model: under torch.autocast curvature would be rounded to half precision; compute "
            "it outside"
        )
    if parametrize._cache_enabled and any(map(parametrize.is_parametrized, model.modules())):
        raise ArgumentError(
            "model: inside torch.nn.utils.parametrize.cached() its weights are cached from an "
            "earlier pass, without the graph to their parameters; ask for curvature outside"
        )


def check_parameters(model: nn.Module) -> None:
    """Check that a model has trainable parameters, all of them real and with values.

    Raises:
        ArgumentError: no trainable parameters, or one is complex, has no values, or was made in
            inference mode.
    """
    parameters = [*model.named_parameters()]
    trainable = {name: parameter for name, parameter in parameters if parameter.requires_grad}
    if not trainable:
        raise ArgumentError("model: expected trainable parameters, found none")
    for name, parameter in trainable.items():
        if parameter.is_inference():
            raise ArgumentError(
                f"model: {name!r} was made under torch.inference_mode(), and autograd cannot use "
                "it; build or load the model outside, or give copy.deepcopy(model)"
            )
        if parameter.is_complex():
            raise ArgumentError(
                f"model: {name!r} is complex; hold it in real numbers, "
                "torch.view_as_real(parameter), and use torch.view_as_complex of these in forward"
            )
    for name, tensor in (*parameters, *model.named_buffers()):
        if tensor.is_meta:
            raise ArgumentError(
                f"model: {name!r} is on the meta device and has no values; load the model before"
            )
