"""Stopping rules for estimators: a fixed count of probes, or a bound on the standard error.

The standard error is looked at after whole blocks of probes only. It has to be small enough at two
looks in a row, so that one lucky block does not end the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from hessblocks.errors import ArgumentError
from hessblocks.linalg.estimators.estimates import Estimate

LOOKS_IN_A_ROW = 2


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
