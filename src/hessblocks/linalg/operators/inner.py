"""Inner products and small dense factors, accumulated in float64 whatever the dtype of the vectors.

Letters: a and b, columns on the left and on the right.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

ROWS_AT_ONCE = 1 << 18


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that bases are held in: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def inner_products(
    left: Float[Tensor, "rows a"], right: Float[Tensor, "rows b"]
) -> Float[Tensor, "a b"]:
    """leftᵀ right in float64, some rows at a time so that no float64 copy of either is made."""
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64, device=left.device)
    for a, b in zip(left.split(ROWS_AT_ONCE), right.split(ROWS_AT_ONCE), strict=True):
        total += a.double().T @ b.double()
    return total


def column_products(
    left: Float[Tensor, "rows count"], right: Float[Tensor, "rows count"]
) -> Float[Tensor, " count"]:
    """The inner product of each column with its partner, in float64."""
    total = torch.zeros(left.shape[1], dtype=torch.float64, device=left.device)
    for a, b in zip(left.split(ROWS_AT_ONCE), right.split(ROWS_AT_ONCE), strict=True):
        total += (a.double() * b.double()).sum(0)
    return total


def student_factor(samples: int) -> float:
    """√((K−1)/(K−3)): Student's t with K−1 degrees of freedom is that much wider than a normal."""
    return math.sqrt((samples - 1) / (samples - 3))


def pooled_factor(samples: int) -> float:
    """√(1 + 2/K): room for the noise of a variance pooled over many entries of K samples."""
    return math.sqrt(1 + 2 / samples)
