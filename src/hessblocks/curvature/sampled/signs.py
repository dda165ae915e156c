"""Random signs for the logits: the same for a row however batches are cut, and on every device."""

from __future__ import annotations

import hashlib

import torch
from jaxtyping import Int
from torch import Tensor

from hessblocks.curvature.products import Batch

BITS = 8


def signs(
    batch: Batch, shape: torch.Size, device: torch.device, *, seed: int, sample: int, data: int
) -> Int[Tensor, "..."]:
    """±1 for each logit of a pass.

    Args:
        batch: the pass; its number and first row tell it from all others.
        shape: of its logits.
        device: where the logits are.
        seed: of the run.
        sample: number of the sample.
        data: which of several sets of batches this is; processes with data of their own have one each.

    Returns:
        Signs as int8, of that shape.
    """
    rows = batch.rows if shape[0] == batch.rows else 1
    table = torch.arange(1 << BITS)[:, None].bitwise_right_shift(torch.arange(BITS)) & 1
    table = table.to(device, torch.int8) * 2 - 1
    entries = shape.numel() // rows
    drawn = []
    for row in range(batch.first, batch.first + rows):
        said = f"signs {seed} {sample} {data} {batch.number} {row}".encode()
        own = int.from_bytes(hashlib.sha256(said).digest()[:7], "big")
        generator = torch.Generator().manual_seed(own)
        size = (-(-entries // BITS),)
        packed = torch.randint(1 << BITS, size, generator=generator, dtype=torch.uint8)
        drawn.append(table[packed.to(device).int()].flatten()[:entries])
    return torch.stack(drawn).view(shape)
