"""Refuse a loss that is NaN or infinite."""

from __future__ import annotations

from hessblocks.curvature.losses.batches import Batch
from hessblocks.errors import RunError


def check_finite(total: float, batch: Batch) -> float:
    """Require that a batch's loss is a finite number.

    Returns:
        The loss as it came.

    Raises:
        RunError: it is not; the message says which batch.
    """
    if not abs(total) < float("inf"):
        raise RunError(
            f"curvature: the loss of batch {batch.number} (counted from 0) is {total}; "
            "look at its inputs, or use float32 or float64 parameters"
        )
    return total
