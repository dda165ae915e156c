"""Draw random probe vectors, as many at once as fit the memory, and multiply them (matvecs).

Letters: M rows, N columns, K probes.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError, RunError, check_whole
from hessblocks.linalg.operators import (
    LinearOperator,
    chunks,
    default_limit,
    largest_size,
    working_dtype,
)

Distribution = Literal["rademacher", "gaussian"]
ROUNDINGS = 100
"""Two products count as equal up to this many ε times their largest entry."""
ARRAYS = 4
"""Arrays in memory, each as large as the vectors that are multiplied at once."""


class Probes:
    """Stream of probe vectors for one operator; the size of the blocks does not change them.

    Each vector is drawn by itself, on the CPU. So the k-th depends on the seed and k alone,
    whatever the device. Drawing costs about 4 ns per entry; one byte per sign moves to the device.
    """

    def __init__(
        self, operator: LinearOperator, *, seed: int, distribution: Distribution = "rademacher"
    ) -> None:
        """Start the stream.

        Args:
            operator: operator that multiplies the probes; sets their length, dtype and device.
            seed: seed of the generator.
            distribution: `rademacher` (±1) or `gaussian` (standard normal).

        Raises:
            ArgumentError: the seed is not a whole number of 64 bits.
        """
        check_whole(seed=seed)
        if not -(1 << 63) <= seed < 1 << 64:
            raise ArgumentError(f"seed: expected a whole number of 64 bits, got {seed}")
        self._operator = operator
        self._distribution = distribution
        self._generator = torch.Generator().manual_seed(int(seed))

    def draw(self, count: int) -> Float[Tensor, "size count"]:
        """Draw the next `count` probes as columns, each contiguous, as products want them."""
        if count == 1:  # needs no copy
            return self._draw_one()[:, None]
        return torch.stack([self._draw_one() for _ in range(count)]).T

    def blocks(self, count: int, at_once: int = 0) -> Iterator[Float[Tensor, "size some"]]:
        """Yield the next `count` probes, at most `at_once` together; 0: as many as fit memory."""
        operator = self._operator
        entries = ARRAYS * max(operator.shape) * operator.dtype.itemsize
        for chunk in chunks(count, at_once or max(1, default_limit(operator.device) // entries)):
            yield self.draw(chunk.stop - chunk.start)

    def _draw_one(self) -> Tensor:
        size, dtype, device = self._operator.shape[1], self._operator.dtype, self._operator.device
        if self._distribution == "gaussian":
            return torch.randn(size, generator=self._generator, dtype=dtype).to(device)
        # one byte per entry moves to the device, not the four or eight of a float
        bits = torch.randint(2, (size,), generator=self._generator, dtype=torch.int8)
        return bits.to(device).to(dtype).mul_(2).sub_(1)


def multiply(
    operator: LinearOperator, columns: Float[Tensor, "size count"]
) -> Float[Tensor, "rows count"]:
    """Multiply columns, and refuse products that are not finite.

    Returns:
        The products, one column for each of the given ones.

    Raises:
        RunError: a product, or the sum of its squares, is not finite.
    """
    products = operator @ columns
    _check_range(operator, products)
    return products


def missed_by_signs(
    operator: LinearOperator, diagonal: Float[Tensor, " size"] | None = None, *, seed: int
) -> bool:
    """Tell whether A differs from the zero or diagonal matrix that Rademacher probes have shown.

    A row (1, 1) maps every second Rademacher vector to 0. So a few of them can all agree on zero,
    or on a diagonal, although A is neither. One Gaussian vector settles it: two different matrices
    map it to the same vector with probability 0.

    Args:
        operator: operator A.
        diagonal: diagonal of the matrix that was shown; None: the zero matrix.
        seed: seed of the Gaussian vector.

    Returns:
        Whether they differ beyond rounding.

    Cost: one product.
    """
    probe = Probes(operator, seed=seed, distribution="gaussian").draw(1)
    product = multiply(operator, probe)[:, 0]
    if diagonal is None:
        return bool(product.any())
    expected = diagonal.to(product.dtype) * probe[:, 0]
    rounding = ROUNDINGS * torch.finfo(product.dtype).eps * float(product.abs().max())
    return float((product - expected).abs().max()) > rounding


def _check_range(operator: LinearOperator, products: Tensor) -> None:
    """Refuse products that are not finite, or whose squares are not; warn of lost digits."""
    if not products.numel():
        return
    largest = largest_size(products)
    name = f"operator @ probes: {type(operator).__name__} {operator.shape} in {operator.dtype}"
    if not math.isfinite(largest):
        raise RunError(
            f"{name} gave values that are not finite; check the loss and the weights for NaN or "
            "overflow, or use a wider dtype."
        )
    if largest > math.sqrt(torch.finfo(working_dtype(products.dtype)).max / len(products)):
        raise RunError(
            f"{name} gave values up to {largest:.1e}, whose squares overflow; scale the loss down "
            "or use a wider dtype."
        )
    limits = torch.finfo(products.dtype)
    if 0 < largest < limits.tiny / limits.eps:
        warnings.warn(
            f"{name} gave values up to {largest:.1e} only, near the smallest numbers of the "
            "dtype, where digits are lost; scale the loss up or use a wider dtype.",
            stacklevel=3,
        )


def assemble(operator: LinearOperator) -> Float[Tensor, "rows columns"]:
    """Assemble the whole matrix from N products."""
    identity = torch.eye(operator.shape[1], dtype=operator.dtype, device=operator.device)
    return multiply(operator, identity)


def check_probes(name: str, probes: int, *, at_least: int, **others: object) -> None:
    """Refuse a number of probes that is too small.

    Args:
        name: name of the estimator.
        probes: number of probes.
        at_least: the fewest.
        others: further arguments by name, which have to be whole numbers.

    Raises:
        ArgumentError: no whole numbers, or too few probes for an error bar.
    """
    check_whole(probes=probes, **others)
    if probes < at_least:
        raise ArgumentError(
            f"{name}: probes: expected at least {at_least} (fewer give no error bar), got {probes}"
        )


def check_square(name: str, operator: LinearOperator, *, symmetric: bool = False) -> None:
    """Refuse an operator that is not square, or not declared symmetric though it has to be.

    Raises:
        ArgumentError: the operator is not square, or not symmetric.
    """
    if operator.shape[0] != operator.shape[1]:
        raise ArgumentError(f"{name}: expected a square operator, got shape {operator.shape}")
    if symmetric and not operator.symmetric:
        raise ArgumentError(
            f"{name}: expected a symmetric operator; if it is, say so when it is made: "
            "symmetric=True"
        )
