"""Hutchinson's diagonal estimator, and the running mean and variance of w = z ⊙ A z behind it.

The trace is read from the same moments: it is the sum of the diagonal.

Letters: N size, K probes, z a probe with entries ±1. E[w_i] = A_ii and Var(w_i) = Σ_{j≠i} A_ij².
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg.estimators.estimates import DiagonalEstimate
from hessblocks.linalg.estimators.probes import (
    Probes,
    assemble,
    check_probes,
    check_square,
    missed_by_signs,
    multiply,
)
from hessblocks.linalg.operators import (
    LinearOperator,
    Operand,
    column_lengths,
    lengths,
    operator_of,
    pooled_factor,
    student_factor,
    working_dtype,
)

FEWEST_PROBES = 4


class EntryMoments:
    """Running mean and variance over probes of every entry of z ⊙ A z, in two vectors' memory."""

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
        self._spread = torch.zeros_like(self.mean)  # roots of sums of squares, which stay in range

    def add(self, count: int) -> None:
        """Count in further probes by the update of Chan, Golub and LeVeque (1983)."""
        for probes in self._source.blocks(count, self._probe_chunk):
            entries = (probes * multiply(self._operator, probes)).to(self.mean.dtype)
            size, mean = entries.shape[1], entries.mean(1)
            shift, total = mean - self.mean, self.count + size
            within = lengths(entries - mean[:, None])
            between = shift.abs() * math.sqrt(self.count * size / total)
            self._spread = torch.hypot(self._spread, torch.hypot(within, between))
            self.mean += shift * (size / total)
            self.count = total

    def checked(self, seed: int) -> EntryMoments:
        """Return these moments, or those of Gaussian probes where the signs agree by chance.

        That is so where no entry has any spread although A is no diagonal matrix.

        Args:
            seed: of the Gaussian probes.

        Returns:
            Moments of as many probes.

        Cost: a product where there is no spread; where A is no diagonal, as many again.
        """
        if self._spread.any() or not missed_by_signs(self._operator, self.mean, seed=seed):
            return self
        source = Probes(self._operator, seed=seed, distribution="gaussian")
        anew = EntryMoments(self._operator, source, self._probe_chunk)
        anew.add(self.count)
        return anew

    def trace(self) -> tuple[float, float]:
        """Sum the means: trace Σ_i mean(w_i), error √(2 Σ_i Var(w_i) / K) · √(1 + 2/K).

        For symmetric A the covariance of w_i and w_j is A_ij², so that the variance of zᵀA z is
        2 Σ_i Var(w_i); for others that is a bound.

        Returns:
            The trace and its standard error.
        """
        spread = float(column_lengths(self._spread[:, None]))
        share = math.sqrt(2 / (self.count * (self.count - 1)))
        return float(self.mean.double().sum()), share * spread * pooled_factor(self.count)

    def standard_errors(self) -> Float[Tensor, " N"]:
        """Divide each entry's spread by √K, widened by Student's factor for few probes."""
        share = 1 / math.sqrt(self.count * (self.count - 1))
        return self._spread * (share * student_factor(self.count))


def diagonal(
    op: LinearOperator | Operand, probes: int = 16, seed: int = 0, *, probe_chunk: int | None = None
) -> DiagonalEstimate:
    """Estimate the diagonal of a square operator: mean over probes of z ⊙ A z, z with entries ±1.

    An entry's variance is the sum of squares of the rest of its row, over K. The result is exact,
    and says so, where the operator has its own `diagonal()` or is no larger than the probes are
    many.

    Args:
        op: square operator; a `Problem` stands for its Hessian.
        probes: K, at least 4; the error bars are tested for 16 and more.
        seed: of the probes.
        probe_chunk: probes multiplied at once; bounds memory, changes no probe.

    Returns:
        The entries and the standard error of each: √(sample variance / K · (K−1)/(K−3)).

    Raises:
        ArgumentError: too few probes, or an operator that is not square.
        RunError: a product is not finite.

    Cost: K products.

    Source: Bekas, Kokiopoulou and Saad (2007), equation 2, with signs as probes.
    """
    op = operator_of(op)
    check_square("diagonal", op)
    check_probes("diagonal", probes, at_least=FEWEST_PROBES, probe_chunk=probe_chunk)
    own = getattr(op, "diagonal", None)
    if own is not None or op.shape[0] <= probes:
        values = assemble(op, probe_chunk).diagonal() if own is None else own()
        nothing = torch.zeros_like(values)
        return DiagonalEstimate(values=values, standard_errors=nothing, method="exact")
    moments = EntryMoments(op, Probes(op, seed=seed), probe_chunk)
    moments.add(probes)
    moments = moments.checked(seed)
    return DiagonalEstimate(
        values=moments.mean, standard_errors=moments.standard_errors(), probes=probes
    )
