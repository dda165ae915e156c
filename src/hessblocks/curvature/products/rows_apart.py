"""Whether the rows of a batch may be taken apart: those of a pair must give together what each gives alone.

A model that mixes rows does not, and neither does an entry of the batch that is cut though its first axis only happens
to be as long as the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.curvature.losses import Batch
from hessblocks.errors import ArgumentError, out_of_memory

ALIKE = 1e-2
"""Largest change of a row beside another, as a share of its norm, that other kernels may explain."""
NUMBER = "give another number of outputs"


def check_rows(pair: Sequence[Batch], outputs: Callable[[Batch], Float[Tensor, "..."]]) -> None:
    """Refuse rows that depend on each other. Costs a forward pass of four rows.

    Args:
        pair: two rows together, then each alone.
        outputs: of the model for a batch, rows first.

    Raises:
        ArgumentError: they do.
    """
    together, *alone = pair
    try:
        left = outputs(together).flatten()
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        raise _refusal(f"fail ({str(error).splitlines()[0]})") from error
    for row in alone:
        own = outputs(row).flatten()
        beside, left = left[: own.numel()], left[own.numel() :]
        if beside.numel() < own.numel():
            raise _refusal(NUMBER)
        bound = max(ALIKE, 16 * torch.finfo(own.dtype).eps) * own.nan_to_num().norm()
        if (change := (beside - own).nan_to_num().norm()) > bound:
            raise _refusal(f"differ by {float(change / own.nan_to_num().norm()):.2g} of their norm")
    if left.numel():
        raise _refusal(NUMBER)


def _refusal(what: str) -> ArgumentError:
    return ArgumentError(
        f"batches: two rows in one batch {what}, where each alone is taken to say the same; batches are cut here, and "
        "every entry along its first axis where that has as many entries as the batch has rows: give an entry that is "
        "not of the rows, such as a bias (heads, T, T), an axis of one in front; where the model itself mixes rows, a "
        "loss that is a callable, without memory_limit, leaves batches whole"
    )
