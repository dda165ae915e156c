"""The size of every preset, counted on models without memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import nn

from hessblocks.blocks import PRESETS, ReparametrisedLinear, summary
from hessblocks.errors import ArgumentError
from hessblocks.models import build
from hessblocks.settings import PresetSizes


@dataclass(frozen=True, kw_only=True)
class BlockSize:
    """How large a model of one preset is."""

    preset: str
    """Name of the block."""
    summary: str
    """What it is and what it removes."""
    parameters: int
    """Trainable numbers, tied ones once."""
    matmuls: int
    """Matrix products of one token: weights, scores and mix of each layer, and the head."""
    multiply_adds: int
    """Multiplications with an addition of one token, the last of a full context or window; without the
    centre of shaped attention, which is a mean."""


def block_sizes(sizes: PresetSizes) -> list[BlockSize]:
    """The size of every preset at the same sizes and with the same slots.

    Args:
        sizes: layers, widths, vocabulary and context.

    Returns:
        One entry a preset, without those whose parts exclude what was set.

    Raises:
        ArgumentError: sizes that do not fit, or slots that no preset can have.
    """
    found, refusal = [], None  # the first: of a block that has most of what can be set
    for name in PRESETS:
        try:
            with torch.device("meta"):
                model = build(name, **asdict(sizes))
        except ArgumentError as error:
            refusal = refusal or error
            continue
        seen = min(sizes.context, model.config.block_config.attention.window or sizes.context)
        weights = list(_applied_weights(model))
        found.append(
            BlockSize(
                preset=name,
                summary=summary(name),
                parameters=sum(parameter.numel() for parameter in model.parameters()),
                matmuls=len(weights) + 2 * sizes.depth,
                multiply_adds=sum(weights) + 2 * sizes.depth * seen * sizes.width,
            )
        )
    if refusal and not (found and (sizes.slots or sizes.position)):
        raise refusal
    return found


def _applied_weights(model: nn.Module) -> Iterator[int]:
    """Entries of each matrix that a token's vector is multiplied by."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield module.weight.numel()
        elif isinstance(module, ReparametrisedLinear):
            yield module.update.numel()
