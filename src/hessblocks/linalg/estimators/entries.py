"""Running mean and variance of w = z ⊙ A z: the diagonal and the trace are both read from it.

Letters: N size, K probes, z a probe with entries ±1. E[w_i] = A_ii and Var(w_i) = Σ_{j≠i} A_ij².
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg.estimators.probes import Probes, chunk_sizes, multiply
from hessblocks.linalg.operators import LinearOperator, pooled_factor, student_factor, working_dtype


class EntryMoments:
    """Mean and variance over probes of every entry of z ⊙ A z, in the memory of two vectors."""

    def __init__(self, operator: LinearOperator, source: Probes, probe_chunk: int | None) -> None:
        """Start with no probes.

        Args:
            operator: square operator A.
            source: where the probes come from.
            probe_chunk: probes multiplied at once.
        """
        self._operator = operator
        self._source = source
        self._probe_chunk = probe_chunk
        self.count = 0
        self.mean = torch.zeros(
            operator.shape[0], dtype=working_dtype(operator.dtype), device=operator.device
        )
        self._squares = torch.zeros_like(self.mean)

    def add(self, count: int) -> None:
        """Draw, multiply and count in further probes."""
        for size in chunk_sizes(count, self._probe_chunk):
            probes = self._source.draw(size)
            self._merge((probes * multiply(self._operator, probes)).to(self.mean.dtype))

    def _merge(self, entries: Tensor) -> None:
        """Count in (N, K) entries by the update of Chan, Golub and LeVeque (1983)."""
        size = entries.shape[1]
        mean = entries.mean(1)
        shift = mean - self.mean
        total = self.count + size
        self._squares += (entries - mean[:, None]).square().sum(1)
        self._squares += shift.square() * (self.count * size / total)
        self.mean += shift * (size / total)
        self.count = total

    def trace(self) -> tuple[float, float]:
        """Trace and standard error: Σ_i mean(w_i) and √(2 Σ_i Var(w_i) / K) · √(1 + 2/K).

        For symmetric A the covariance of w_i and w_j is A_ij², so that the variance of zᵀA z is
        2 Σ_i Var(w_i); for others that is a bound.

        Returns:
            The trace and its standard error.
        """
        variance = float(self._squares.double().sum()) / (self.count - 1)
        return float(self.mean.double().sum()), math.sqrt(
            2 * variance / self.count
        ) * pooled_factor(self.count)

    def standard_errors(self) -> Float[Tensor, " N"]:
        """Standard error of each entry's mean, with Student's factor for few probes."""
        variance = self._squares / (self.count - 1)
        return (variance / self.count).sqrt() * student_factor(self.count)
