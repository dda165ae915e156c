"""Inner products, lengths and small dense factors, for any dtype and any size of vector.

Sums are accumulated in float64. Squares leave the range of a dtype long before its numbers do
(below 1e-19 in float32, below 1e-154 in float64). So numbers are divided by a power of two before
they are squared.

Letters: a and b, columns on the left and on the right.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

ROWS_AT_ONCE = 1 << 18


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Choose the dtype that bases are held in: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def largest_size(values: Float[Tensor, "..."]) -> float:
    """Find the largest |value|; 0 without values, NaN if any is NaN."""
    if not values.numel():
        return 0.0
    # probes are columns of a transposed matrix; reading in memory order is ten times faster
    low, high = (values.mT if values.ndim > 1 and values.stride(-1) > 1 else values).aminmax()
    return max(-float(low), float(high))


def unit_of(values: Float[Tensor, "..."]) -> float:
    """Find a power of 4 near the largest |value|.

    Division by it is exact, and the quotients can be squared without over- or underflow.

    Args:
        values: any numbers.

    Returns:
        The power; 1 if all values are zero or one is not finite.
    """
    size = largest_size(values)
    if not 0 < size < math.inf:
        return 1.0
    limits = torch.finfo(values.dtype)
    # the inverse must be finite too, since some devices divide by multiplying with it
    exponent = math.frexp(min(max(size, limits.tiny), limits.max / 8))[1]
    return float(4.0 ** (exponent // 2))


def lengths(rows: Float[Tensor, "rows count"]) -> Float[Tensor, " rows"]:
    """Compute the Euclidean length of each row in its own dtype, however small or large."""
    sizes = rows.abs().amax(1, keepdim=True)
    sizes = torch.where((sizes > 0) & sizes.isfinite(), sizes, 1.0)
    # vector_norm reads columns one by one, which takes five times as long
    return (rows / sizes).square_().sum(1).sqrt_() * sizes[:, 0]


def inner_products(
    left: Float[Tensor, "rows a"], right: Float[Tensor, "rows b"]
) -> Float[Tensor, "a b"]:
    """Compute leftᵀ right in float64, some rows at a time: no float64 copy of either is made."""
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64, device=left.device)
    for a, b in zip(left.split(ROWS_AT_ONCE), right.split(ROWS_AT_ONCE), strict=True):
        total += a.double().T @ b.double()
    return total


def column_products(
    left: Float[Tensor, "rows count"], right: Float[Tensor, "rows count"]
) -> Float[Tensor, " count"]:
    """Multiply each column with its partner in float64: one inner product per column."""
    total = torch.zeros(left.shape[1], dtype=torch.float64, device=left.device)
    for a, b in zip(left.split(ROWS_AT_ONCE), right.split(ROWS_AT_ONCE), strict=True):
        total += (a.double() * b.double()).sum(0)
    return total


def column_lengths(columns: Float[Tensor, "rows count"]) -> Float[Tensor, " count"]:
    """Compute Euclidean lengths of columns in float64, also where squares leave its range."""
    total = torch.zeros(columns.shape[1], dtype=torch.float64, device=columns.device)
    unit = unit_of(columns)
    for rows in columns.split(ROWS_AT_ONCE):
        total += (rows.double() / unit).square().sum(0)
    return unit * total.sqrt()


def student_factor(samples: int) -> float:
    """Compute √((K−1)/(K−3)): Student's t of K−1 degrees of freedom beside the normal."""
    return math.sqrt((samples - 1) / (samples - 3))


def pooled_factor(samples: int) -> float:
    """Compute √(1 + 2/K): room for the noise of a variance pooled over entries of K samples."""
    return math.sqrt(1 + 2 / samples)
