"""Extract the last attention of a known model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from hessblocks.curvature.last_layer.families import FAMILIES, output_layer
from hessblocks.curvature.last_layer.forward_pass import logits
from hessblocks.curvature.last_layer.from_family import from_family
from hessblocks.curvature.last_layer.from_hessblocks import from_hessblocks
from hessblocks.curvature.last_layer.sub_block import LastAttention
from hessblocks.curvature.last_layer.supported import check_linear
from hessblocks.curvature.losses import Batch, TextPositions
from hessblocks.errors import check_name

_TAKERS: dict[str, Callable[[Any, Batch], LastAttention]] = {
    "hessblocks": from_hessblocks,
    **dict.fromkeys(FAMILIES, from_family),
}


def last_attention(model: nn.Module, batch: Batch) -> LastAttention:
    """Run the model once, inside `undisturbed`, and extract its last attention.

    Args:
        model: a hessblocks model, or one of a kind in `FAMILIES` with its head.
        batch: inputs, with an attention mask where there is padding.

    Returns:
        The sub-block, and what follows it as a function of one token.

    Raises:
        ArgumentError: a model that is not known, or parts that the closed form does not cover.
    """
    kind = str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))
    check_name("model: closed-form attention curvature of", kind, _TAKERS)
    check_linear("the output layer", output_layer(model))
    with torch.no_grad():
        told = TextPositions(model).put_into(batch, partial(logits, model))
        return _TAKERS[kind](model, told)
