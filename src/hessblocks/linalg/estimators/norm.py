"""Hutchinson's estimator of the Frobenius norm: ‖A‖_F² = E ‖A z‖².

Letters: A the matrix, N its columns, K probes, z a probe with entries ±1, s the mean of ‖A z‖².
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg.estimators.estimates import Estimate
from hessblocks.linalg.estimators.probes import (
    Probes,
    Stopping,
    assemble,
    check_probes,
    missed_by_signs,
    multiply,
)
from hessblocks.linalg.operators import (
    LinearOperator,
    Operand,
    column_lengths,
    operator_of,
    student_factor,
    unit_of,
)

FEWEST_PROBES = 4


def frobenius_norm(
    op: LinearOperator | Operand,
    probes: int = 16,
    seed: int = 0,
    tolerance: float | None = None,
    *,
    max_probes: int = 1024,
    probe_chunk: int | None = None,
) -> Estimate:
    """Estimate the Frobenius norm of an operator: √(mean over probes of ‖A z‖²).

    ‖A z‖² is unbiased for ‖A‖_F². Its root is low, by a share of Var(‖A z‖²) / (8 K s²) at most.
    That is 1.6 % for a matrix of rank one and 16 probes, an eighth of the standard error, and far
    less for most.

    The result is exact, and says so, where the operator has its own `frobenius_norm()` or has no
    more columns than there are probes. By chance signs can give 0 for every product of a matrix
    that is not zero. A Gaussian vector then tells, and Gaussian probes take the place of the signs
    if it is not.

    Args:
        op: operator (M, N), square or not; a `Problem` stands for its Hessian.
        probes: K, at least 4; the error bar is tested for 16 and more. With a tolerance: probes of
            one block.
        seed: of the probes.
        tolerance: draw blocks until the standard error is at most this share of the value at two
            looks in a row.
        max_probes: where a run with a tolerance ends at the latest, with a warning.
        probe_chunk: probes multiplied at once; bounds memory, changes no probe.

    Returns:
        The norm; see `norm_from_squares` for its standard error.

    Raises:
        ArgumentError: too few probes, or a tolerance that is not positive.
        RunError: a product is not finite.

    Cost: K products.

    Source: Hutchinson (1990) applied to AᵀA.
    """
    op = operator_of(op)
    check_probes("frobenius_norm", probes, at_least=FEWEST_PROBES, probe_chunk=probe_chunk)
    stopping = Stopping(block=probes, tolerance=tolerance, max_probes=max_probes)
    if own := getattr(op, "frobenius_norm", None):
        return Estimate(value=float(own()), method="exact")
    if op.shape[1] <= probes:
        sizes = column_lengths(assemble(op, probe_chunk))
        return Estimate(value=float(column_lengths(sizes[:, None])), method="exact")
    source = Probes(op, seed=seed)
    sizes = torch.empty(0, dtype=torch.float64, device=op.device)

    def add_block(count: int) -> Estimate:
        nonlocal source, sizes
        known = bool(sizes.any())
        sizes = _with_block(sizes, op, source, count, probe_chunk)
        if not known and not sizes.any() and missed_by_signs(op, seed=seed):
            source = Probes(op, seed=seed, distribution="gaussian")
            # signs and Gaussian vectors have other variances: none of the former is counted
            sizes = _with_block(sizes[:0], op, source, len(sizes), probe_chunk)
        return _norm_from_lengths(sizes)

    return stopping.run("frobenius_norm", add_block)


def _with_block(
    sizes: Tensor, op: LinearOperator, source: Probes, count: int, probe_chunk: int | None
) -> Tensor:
    """Append ‖A z‖ of `count` further probes to those so far."""
    drawn = source.blocks(count, probe_chunk)
    return torch.cat([sizes, *(column_lengths(multiply(op, some)) for some in drawn)])


def _norm_from_lengths(sizes: Float[Tensor, " probes"]) -> Estimate:
    """Do as `norm_from_squares`, from ‖A z‖, whose squares may leave the range of float64."""
    unit = unit_of(sizes)
    found = norm_from_squares((sizes / unit).square())
    return replace(found, value=unit * found.value, standard_error=unit * found.standard_error)


def norm_from_squares(squares: Float[Tensor, " probes"]) -> Estimate:
    """Estimate the norm and its standard error from ‖A z‖² of each probe.

    With r = Var(‖A z‖²) / (K s²), from the sample variance, the standard error is

        ½ √r · √s · (1 + 3 r) · √((K−1)/(K−3)).

    ½ √(r s) is the delta method. The last factor is Student's, for few probes. The factor 1 + 3 r
    stands for the skewness of ‖A z‖² where few directions dominate: the sample variance is then
    small just when the mean is low. It is near 1 for spread spectra and at most about 1.4 at 16
    probes.

    Args:
        squares: ‖A z‖² for K ≥ 4 independent probes.

    Returns:
        The estimate; 0 ± 0 for a zero matrix.
    """
    squares = squares.double()
    count = squares.shape[0]
    mean = float(squares.mean())
    if mean == 0.0:
        return Estimate(value=0.0, probes=count)
    spread = float((squares / mean).var()) / count
    value = math.sqrt(mean)
    error = 0.5 * math.sqrt(spread) * value * (1 + 3 * spread) * student_factor(count)
    return Estimate(value=value, standard_error=error, probes=count)
