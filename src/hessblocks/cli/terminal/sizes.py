"""The size of every preset, counted on models without memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from hessblocks.blocks import PRESETS, ReparametrisedLinear, summary
from hessblocks.models import build


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
    """Multiplications with an addition of one token, the last of a full context; without the running
    mean of shaped attention, which adds only."""


def block_sizes(
    *, depth: int, width: int, heads: int, mlp_width: int | None, vocab_size: int, context: int
) -> list[BlockSize]:
    """The size of every preset at the same sizes.

    Args:
        depth: layers.
        width: entries of a token's vector.
        heads: attention heads.
        mlp_width: hidden width of the MLP; None means the preset's own.
        vocab_size: entries of the vocabulary.
        context: tokens of a sequence.

    Returns:
        One entry a preset.

    Raises:
        ArgumentError: sizes that do not fit.
    """
    found = []
    for name in PRESETS:
        with torch.device("meta"):
            model = build(
                name,
                depth=depth,
                width=width,
                heads=heads,
                mlp_width=mlp_width,
                vocab_size=vocab_size,
                context=context,
            )
        weights = list(_applied_weights(model))
        found.append(
            BlockSize(
                preset=name,
                summary=summary(name),
                parameters=sum(parameter.numel() for parameter in model.parameters()),
                matmuls=len(weights) + 2 * depth,
                multiply_adds=sum(weights) + 2 * depth * context * width,
            )
        )
    return found


def _applied_weights(model: nn.Module) -> Iterator[int]:
    """Entries of each matrix that a token's vector is multiplied by."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield module.weight.numel()
        elif isinstance(module, ReparametrisedLinear):
            yield module.update.numel()
