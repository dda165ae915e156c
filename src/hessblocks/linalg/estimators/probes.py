"""Random probe vectors, the products (matvecs) that estimators ask for, and when they stop.

The standard error is looked at after whole blocks of probes only. It has to be small enough at two
looks in a row, so that one lucky block does not end the run.

Letters: M rows, N columns, K probes.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg.estimators.estimates import Estimate
from hessblocks.linalg.operators import LinearOperator, chunks, working_dtype

Distribution = Literal["rademacher", "gaussian"]
ROUNDINGS = 100
"""Two products differ by more than so many roundings of their largest entry, or not at all."""
LOOKS_IN_A_ROW = 2


class Probes:
    """Stream of probe vectors for one operator, the same however it is cut into blocks.

    Each vector is drawn on its own and on the CPU. So the k-th one depends on the seed and on k
    alone, whatever the device. It costs about 4 ns an entry there, and a byte of each sign is
    moved.
    """

    def __init__(
        self, operator: LinearOperator, *, seed: int, distribution: Distribution = "rademacher"
    ) -> None:
        """Start the stream.

        Args:
            operator: what the probes are multiplied by; fixes length, dtype and device.
            seed: of the generator.
            distribution: `rademacher` (±1) or `gaussian` (standard normal).
        """
        self._operator = operator
        self._distribution = distribution
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self, count: int) -> Float[Tensor, "size count"]:
        """Draw the next `count` probes as columns, each contiguous, as products want them."""
        if count == 1:  # needs no copy
            return self._draw_one()[:, None]
        return torch.stack([self._draw_one() for _ in range(count)]).T

    def blocks(self, count: int, at_once: int | None) -> Iterator[Float[Tensor, "size some"]]:
        """Yield the next `count` probes, at most `at_once` together; None: all of them."""
        for some in chunks(count, at_once or count):
            yield self.draw(some.stop - some.start)

    def _draw_one(self) -> Tensor:
        size, dtype, device = self._operator.shape[1], self._operator.dtype, self._operator.device
        if self._distribution == "gaussian":
            return torch.randn(size, generator=self._generator, dtype=dtype).to(device)
        # a byte an entry goes to the device, not the four or eight of a sign
        bits = torch.randint(2, (size,), generator=self._generator, dtype=torch.int8)
        return bits.to(device).to(dtype).mul_(2).sub_(1)


def multiply(
    operator: LinearOperator, columns: Float[Tensor, "size count"], probe_chunk: int | None = None
) -> Float[Tensor, "rows count"]:
    """Multiply columns by the operator, `probe_chunk` at a time, and refuse what is not finite.

    Returns:
        The products, one column for each of the given ones.

    Raises:
        RunError: the product is not finite, or its squares are not.
    """
    pieces = [operator @ piece for piece in columns.split(probe_chunk or columns.shape[1], dim=1)]
    products = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
    _check_range(operator, products)
    return products


def missed_by_signs(
    operator: LinearOperator, diagonal: Float[Tensor, " size"] | None = None, *, seed: int
) -> bool:
    """Tell whether A differs from what the signs have seen: zero, or a diagonal.

    A row (1, 1) sends every second vector of signs to 0. So a few vectors of signs can all agree on
    zero, or on a diagonal, although A is something else. One Gaussian vector tells: two different
    matrices send it to the same place with probability 0.

    Args:
        operator: A.
        diagonal: diagonal of the matrix that was seen; None: the zero matrix.
        seed: of the Gaussian vector.

    Returns:
        Whether they differ beyond rounding.

    Cost: a product.
    """
    probe = Probes(operator, seed=seed, distribution="gaussian").draw(1)
    found = multiply(operator, probe)[:, 0]
    if diagonal is None:
        return bool(found.any())
    expected = diagonal.to(found.dtype) * probe[:, 0]
    rounding = ROUNDINGS * torch.finfo(found.dtype).eps * float(found.abs().max())
    return float((found - expected).abs().max()) > rounding


def _check_range(operator: LinearOperator, products: Tensor) -> None:
    """Refuse products or squares of them that are not finite; warn where digits are lost."""
    if not products.numel():
        return
    low, high = products.aminmax()
    largest = max(-float(low), float(high))
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


def assemble(
    operator: LinearOperator, probe_chunk: int | None = None
) -> Float[Tensor, "rows columns"]:
    """Assemble the whole matrix from N products."""
    identity = torch.eye(operator.shape[1], dtype=operator.dtype, device=operator.device)
    return multiply(operator, identity, probe_chunk)


def check_probes(name: str, probes: int, *, at_least: int, probe_chunk: int | None = None) -> None:
    """Refuse a count of probes or a chunk that cannot be used.

    Raises:
        ArgumentError: too few probes for an error bar, or an empty chunk.
    """
    if probes < at_least:
        raise ArgumentError(
            f"{name}: probes: expected at least {at_least} (fewer give no error bar), got {probes}"
        )
    if probe_chunk is not None and probe_chunk < 1:
        raise ArgumentError(f"{name}: probe_chunk: expected at least 1, got {probe_chunk}")


def check_square(name: str, operator: LinearOperator, *, symmetric: bool = False) -> None:
    """Refuse an operator that is not square, or not declared symmetric where that is needed.

    Raises:
        ArgumentError: the operator does not fit.
    """
    if operator.shape[0] != operator.shape[1]:
        raise ArgumentError(f"{name}: expected a square operator, got shape {operator.shape}")
    if symmetric and not operator.symmetric:
        raise ArgumentError(
            f"{name}: expected a symmetric operator; if it is, say so when it is made: "
            "symmetric=True"
        )


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """Number of probes to draw: one block, or blocks until a tolerance is met."""

    block: int
    """Probes of one block; without a tolerance, all there are."""
    tolerance: float | None = None
    """Largest standard error wanted, as a share of |value|; None draws one block."""
    max_probes: int = 1024
    """Probes after which a run ends whether or not the tolerance is met."""

    def __post_init__(self) -> None:
        if self.tolerance is None:
            return
        if not self.tolerance > 0:
            raise ArgumentError(f"tolerance: expected a share above 0, got {self.tolerance}")
        if self.max_probes < LOOKS_IN_A_ROW * self.block:
            raise ArgumentError(
                f"max_probes: expected at least {LOOKS_IN_A_ROW} blocks of probes "
                f"({LOOKS_IN_A_ROW * self.block}), got {self.max_probes}"
            )

    def run(self, name: str, add_block: Callable[[int], Estimate]) -> Estimate:
        """Draw blocks until it is time to stop.

        Args:
            name: the estimator, for the warning.
            add_block: draws that many further probes and returns the estimate from all so far.

        Returns:
            The last estimate, with what stopped it.
        """
        estimate = add_block(self.block)
        if self.tolerance is None:
            return estimate
        drawn, good_looks = self.block, int(estimate.relative_error <= self.tolerance)
        while good_looks < LOOKS_IN_A_ROW:
            if drawn + self.block > self.max_probes:
                warnings.warn(
                    f"{name}: relative standard error {estimate.relative_error:.2g} after {drawn} "
                    f"probes, tolerance {self.tolerance:.2g} not met; raise max_probes or "
                    "tolerance",
                    stacklevel=4,
                )
                return replace(estimate, stopped_by="limit")
            estimate = add_block(self.block)
            drawn += self.block
            good_looks = good_looks + 1 if estimate.relative_error <= self.tolerance else 0
        return replace(estimate, stopped_by="tolerance")
