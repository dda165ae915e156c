"""Floating-point operations of an update, counted on a model without memory."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hessblocks.settings import RunSettings
from hessblocks.training.preparation import model_without_weights


def update_flops(settings: RunSettings, vocab_size: int) -> int:
    """Operations of the matrix products of one update, forward and backward; an addition counts too.

    Attention counts in full: tokens × tokens scores, though a fused kernel may skip the masked half.
    Norms, activations and the optimiser are left out; the running means of shaped attention are products with a small
    triangle and count, with less than 1 % of a layer.

    Args:
        settings: of the run.
        vocab_size: entries of the vocabulary.

    Source:
        `torch.utils.flop_counter.FlopCounterMode`.
    """
    model = model_without_weights(settings.model, settings.preset, vocab_size)
    tokens = torch.zeros(1, settings.model.context, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(input_ids=tokens, labels=tokens).loss.backward()
    count: int = counter.get_total_flops()
    return count * settings.training.batch_size
