"""Refuse contexts around a measurement that change its numbers (autocast, cached weights)."""

from __future__ import annotations

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
