"""Diagonal of an operator from random probes."""

from __future__ import annotations

import torch
from torch import Tensor

from hessblocks.linalg.estimators.entries import EntryMoments
from hessblocks.linalg.estimators.estimates import DiagonalEstimate
from hessblocks.linalg.estimators.probes import (
    Probes,
    assemble,
    check_probes,
    check_square,
    closed_form,
)
from hessblocks.linalg.operators import LinearOperator

FEWEST_PROBES = 4


def diagonal(
    op: LinearOperator, probes: int = 16, seed: int = 0, *, probe_chunk: int | None = None
) -> DiagonalEstimate:
    """Diagonal of a square operator: the mean over probes of z ⊙ A z, entries of z being ±1.

    An entry's variance is the sum of squares of the rest of its row over K. Exact, and said so,
    where the operator has its own `diagonal()` and where it is no larger than the probes are many.

    Args:
        op: square operator.
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
    check_square("diagonal", op)
    check_probes("diagonal", probes, at_least=FEWEST_PROBES, probe_chunk=probe_chunk)
    if own := closed_form(op, "diagonal"):
        return _exact(torch.as_tensor(own()))
    if op.shape[0] <= probes:
        return _exact(assemble(op, probe_chunk).diagonal())
    moments = EntryMoments(op, Probes(op, seed=seed), probe_chunk)
    moments.add(probes)
    return DiagonalEstimate(
        values=moments.mean, standard_errors=moments.standard_errors(), probes=probes
    )


def _exact(values: Tensor) -> DiagonalEstimate:
    return DiagonalEstimate(values=values, standard_errors=torch.zeros_like(values), method="exact")
