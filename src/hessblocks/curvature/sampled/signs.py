"""Random numbers for the logits: the same for a row however batches are cut, on every device."""

import hashlib
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.curvature.losses import Batch

BITS = 8


def signs(
    batch: Batch, shape: torch.Size, device: torch.device, *, seed: int, sample: int, data: int
) -> Int[Tensor, "..."]:
    """Draw ±1 (Rademacher) for each logit of a pass.

    Args:
        batch: the pass; its number and first row tell it from all others.
        shape: shape of its logits.
        device: where the logits are.
        seed: seed of the run.
        sample: number of the sample.
        data: which of several sets of batches this is; processes with data of their own have one
            each.

    Returns:
        Signs as int8, of that shape.
    """
    table = torch.arange(1 << BITS)[:, None].bitwise_right_shift(torch.arange(BITS)) & 1
    table = table.to(device, torch.int8) * 2 - 1
    rows = _rows(batch, shape)
    entries = shape.numel() // rows
    drawn = []
    for generator in _generators(batch, rows, f"signs {seed} {sample} {data}"):
        size = (-(-entries // BITS),)
        packed = torch.randint(1 << BITS, size, generator=generator, dtype=torch.uint8)
        drawn.append(table[packed.to(device).int()].flatten()[:entries])
    return torch.stack(drawn).view(shape)


def draws(
    of: Callable[..., Float[Tensor, "..."]], batch: Batch, shape: torch.Size, seed: int, data: int
) -> Float[Tensor, "..."]:
    """Draw random numbers of a distribution for each row of a pass.

    Args:
        of: torch.rand or torch.randn.
        batch: see `signs`.
        shape: shape of what is drawn, rows first.
        seed: see `signs`.
        data: see `signs`.

    Returns:
        Numbers in float64, of that shape, where the batch is.
    """
    rows = _rows(batch, shape)
    size = (shape.numel() // rows,)
    found = [
        of(size, generator=generator, dtype=torch.float64)
        for generator in _generators(batch, rows, f"labels {seed} {data}")
    ]
    return torch.stack(found).view(shape).to(batch.inputs.device)


def _rows(batch: Batch, shape: torch.Size) -> int:
    """Find the rows that get their own random numbers."""
    return batch.rows if shape[0] == batch.rows else 1


def _generators(batch: Batch, rows: int, what: str) -> Iterator[torch.Generator]:
    """Make a generator for each row of a pass."""
    for row in range(batch.first, batch.first + rows):
        said = f"{what} {batch.number} {row}".encode()
        # hashed, since seeds next to each other would give related streams
        own = int.from_bytes(hashlib.sha256(said).digest()[:7], "big")
        # on the CPU: a GPU's generator gives other numbers
        yield torch.Generator().manual_seed(own)
