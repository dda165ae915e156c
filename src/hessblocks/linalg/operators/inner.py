"""Inner products, lengths and small dense factors, whatever the dtype and the size of the vectors.

Sums are accumulated in float64. Squares leave the range of a dtype long before its numbers do (below
1e-19 in float32, 1e-154 in float64), so that numbers are divided by a power of two before they are squared.

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


def unit_of(values: Float[Tensor, "..."]) -> float:
    """A power of 4 near the largest size: what is divided by it keeps its digits, and can be squared.

    Args:
        values: any.

    Returns:
        The power; 1 where all are zero or one is not finite.
    """
    if not values.numel():
        return 1.0
    low, high = values.aminmax()
    size = max(-float(low), float(high))
    if not 0 < size < math.inf:
        return 1.0
    limits = torch.finfo(values.dtype)
    # the power has to be finite, and its inverse too, by which some devices multiply
    exponent = math.frexp(min(max(size, limits.tiny), limits.max / 8))[1]
    return float(4.0 ** (exponent // 2))


def lengths(rows: Float[Tensor, "rows count"]) -> Float[Tensor, " rows"]:
    """Euclidean length of each row, in its own dtype, however small or large the row is."""
    sizes = rows.abs().amax(1, keepdim=True)
    sizes = torch.where((sizes > 0) & sizes.isfinite(), sizes, 1.0)
    found: Tensor = torch.linalg.vector_norm(rows / sizes, dim=1) * sizes[:, 0]
    return found


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


def column_lengths(columns: Float[Tensor, "rows count"]) -> Float[Tensor, " count"]:
    """Euclidean length of each column in float64, also where its square leaves the range."""
    total = torch.zeros(columns.shape[1], dtype=torch.float64, device=columns.device)
    unit = unit_of(columns)
    for some in columns.split(ROWS_AT_ONCE):
        total += (some.double() / unit).square().sum(0)
    return unit * total.sqrt()


def student_factor(samples: int) -> float:
    """√((K−1)/(K−3)): Student's t with K−1 degrees of freedom is that much wider than a normal."""
    return math.sqrt((samples - 1) / (samples - 3))


def pooled_factor(samples: int) -> float:
    """√(1 + 2/K): room for the noise of a variance pooled over many entries of K samples."""
    return math.sqrt(1 + 2 / samples)
