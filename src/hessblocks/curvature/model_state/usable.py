"""Refuse models, and contexts around a measurement, that would give wrong curvature or none."""

import torch
from torch import nn
from torch.nn.utils import parametrize

from hessblocks.errors import ArgumentError


def check_contexts(model: nn.Module, device: torch.device) -> None:
    """Require that passes run in the weights' own precision, and compute weights anew.

    Args:
        model: is measured.
        device: where it is.

    Raises:
        ArgumentError: they would not, under torch.autocast or inside
            torch.nn.utils.parametrize.cached().
    """
    if torch.is_autocast_enabled(device.type):
        raise ArgumentError(
            "model: under torch.autocast curvature would be rounded to half precision; ask for it "
            "outside"
        )
    if parametrize._cache_enabled and any(map(parametrize.is_parametrized, model.modules())):
        raise ArgumentError(
            "model: inside torch.nn.utils.parametrize.cached() its weights come from a pass "
            "before, without the way to their parameters; ask for curvature outside"
        )


def check_parameters(model: nn.Module) -> None:
    """Require trainable parameters in real numbers, that hold memory.

    Raises:
        ArgumentError: no trainable parameters, complex ones, some without values, or made in
            inference mode.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
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
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ArgumentError(
                f"model: {name!r} is on the meta device and has no values; load the model before"
            )
