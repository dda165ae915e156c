"""Hutchinson's probes for norm and diagonal: ‖A‖_F² = E ‖A z‖² and A_ii = E z_i (A z)_i.

The trace is the sum of the diagonal, so both come from the same moments. The diagonal of a
Gauss-Newton or Fisher matrix can also be sampled: gradients g with E g gᵀ = A have E g_i² = A_ii.

Letters: A the matrix, N its columns, K probes, z a probe with entries ±1, s the mean of ‖A z‖²;
w = z ⊙ A z, with E[w_i] = A_ii and Var(w_i) = Σ_{j≠i} A_ij².
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce, singledispatch

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError, check_name
from hessblocks.linalg import operators
from hessblocks.linalg.estimators.estimates import DiagonalEstimate, Estimate
from hessblocks.linalg.estimators.probes import (
    Probes,
    assemble,
    check_probes,
    check_square,
    missed_by_signs,
    multiply,
)

FEWEST_PROBES = 4
"""Fewest probes for which Student's factor √((K−1)/(K−3)) of an error bar exists."""
METHODS = ("probes", "sampled")
IN_CACHE = 1 << 17
"""Entries, of all probes, whose moments are updated at once; so many stay in the cache."""


@operators.keeping
def frobenius_norm(
    op: operators.LinearOperator | operators.Operand, probes: int = 16, seed: int = 0
) -> Estimate:
    """Estimate the Frobenius norm of an operator: √(mean over probes of ‖A z‖²).

    ‖A z‖² is unbiased for ‖A‖_F². The root of the mean is biased low, relatively by about
    Var(‖A z‖²) / (8 K s²). With 16 probes that is 1.6 % for a matrix of rank one, less than a tenth
    of the standard error; for most matrices it is far less.

    The result is exact (`method="exact"`) where the operator has its own `frobenius_norm()`, or at
    most K columns. By chance, signs can give 0 for every product although A is not zero. One
    Gaussian vector then checks whether A is zero. If not, Gaussian probes replace the signs.

    Args:
        op: operator (M, N), square or not; a `Problem` stands for its Hessian.
        probes: K, at least 4; the error bar is tested for 16 and more.
        seed: seed of the probes.

    Returns:
        The norm; see `norm_from_squares` for its standard error.

    Raises:
        ArgumentError: too few probes.
        RunError: a product is not finite.

    Cost: K products; one for each column where the result is exact by assembling.

    Source: Hutchinson (1990) applied to AᵀA.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> print(hb.frobenius_norm(problem))  # of 2 x xᵀ
        50 (exact)
    """
    op = operators.operator_of(op)
    check_probes("frobenius_norm", probes, at_least=FEWEST_PROBES, seed=seed)
    if closed_form := getattr(op, "frobenius_norm", None):
        return Estimate(value=float(closed_form()), method="exact")
    if op.shape[1] <= probes:
        sizes = operators.column_lengths(assemble(op))
        return Estimate(value=float(operators.column_lengths(sizes[:, None])), method="exact")
    sizes = _sizes(op, Probes(op, seed=seed), probes)
    if not sizes.any() and missed_by_signs(op, seed=seed):
        sizes = _sizes(op, Probes(op, seed=seed, distribution="gaussian"), probes)
    unit = operators.unit_of(sizes)  # squares may leave the range of float64
    norm = norm_from_squares((sizes / unit).square())
    return replace(norm, value=unit * norm.value, standard_error=unit * norm.standard_error)


def _sizes(op: operators.LinearOperator, source: Probes, count: int) -> Float[Tensor, " count"]:
    """Compute ‖A z‖ of the next probes."""
    blocks = source.blocks(count)
    return torch.cat([operators.column_lengths(multiply(op, block)) for block in blocks])


def norm_from_squares(squares: Float[Tensor, " probes"]) -> Estimate:
    """Estimate the norm and its standard error from ‖A z‖² of each probe.

    With r = Var(‖A z‖²) / (K s²), from the sample variance, the standard error is

        ½ √r · √s · (1 + 3 r) · √((K−1)/(K−3)).

    The part ½ √(r s) is the delta method for a root. The last factor is the standard deviation of
    Student's t, for few probes. The factor 1 + 3 r allows for the skewness of ‖A z‖² where few
    directions dominate: a low mean then comes with a small sample variance. For spread spectra
    1 + 3 r is near 1; at rank one and 16 probes it is about 1.4.

    Args:
        squares: ‖A z‖² of each of K ≥ 4 independent probes.

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
    error = 0.5 * math.sqrt(spread) * value * (1 + 3 * spread) * operators.student_factor(count)
    return Estimate(value=value, standard_error=error, probes=count)


class EntryMoments:
    """Running mean and variance over probes of every entry of z ⊙ A z, in two vectors' memory."""

    def __init__(self, operator: operators.LinearOperator, source: Probes) -> None:
        """Start with no probes.

        Args:
            operator: square operator A.
            source: stream of probes.
        """
        self._operator = operator
        self._source = source
        self.count = 0
        self.mean = torch.zeros(
            operator.shape[0], dtype=operators.working_dtype(operator.dtype), device=operator.device
        )
        self._spread = torch.zeros_like(self.mean)  # roots of sums of squares, which stay in range

    def add(self, count: int) -> None:
        """Multiply `count` further probes and add their entries to the moments."""
        for probes in self._source.blocks(count):
            self.take(probes, multiply(self._operator, probes))

    def take(self, *factors: Float[Tensor, "N K"]) -> None:
        """Add entries, the entrywise product of `factors` with a column per probe, to the moments.

        Source: the update of Chan, Golub and LeVeque (1983).
        """
        size = factors[0].shape[1]
        total = self.count + size
        for chunk in operators.chunks(len(self.mean), IN_CACHE // size + 1):
            entries = reduce(torch.mul, [factor[chunk] for factor in factors]).to(self.mean.dtype)
            mean = entries.mean(1)
            shift = mean - self.mean[chunk]
            within = operators.lengths(entries - mean[:, None])
            between = shift.abs() * math.sqrt(self.count * size / total)
            self._spread[chunk] = torch.hypot(self._spread[chunk], torch.hypot(within, between))
            self.mean[chunk] += shift * (size / total)
        self.count = total

    def checked(self, seed: int) -> EntryMoments:
        """Return these moments, or moments of Gaussian probes if the signs agree by chance.

        Signs agree by chance where no entry varies although A is not diagonal.

        Args:
            seed: seed of the Gaussian probes.

        Returns:
            Moments of K probes.

        Cost: nothing where an entry varies; else one product, and K more if A is not diagonal.
        """
        if self._spread.any() or not missed_by_signs(self._operator, self.mean, seed=seed):
            return self
        source = Probes(self._operator, seed=seed, distribution="gaussian")
        anew = EntryMoments(self._operator, source)
        anew.add(self.count)
        return anew

    def trace(self) -> tuple[float, float]:
        """Sum the means: trace Σ_i mean(w_i), error √(2 Σ_i Var(w_i) / K) · √(1 + 2/K).

        For symmetric A the covariance of w_i and w_j is A_ij². The variance of zᵀA z is then
        2 Σ_i Var(w_i). For other A this is an upper bound.

        Returns:
            The trace and its standard error.
        """
        spread = float(operators.column_lengths(self._spread[:, None]))
        share = math.sqrt(2 / (self.count * (self.count - 1)))
        return float(self.mean.double().sum()), share * spread * operators.pooled_factor(self.count)

    def standard_errors(self) -> Float[Tensor, " N"]:
        """Divide each entry's spread by √K, widened by Student's factor for few probes."""
        share = 1 / math.sqrt(self.count * (self.count - 1))
        return self._spread * (share * operators.student_factor(self.count))


@singledispatch
def factor_samples(
    op: operators.LinearOperator, count: int, seed: int
) -> Iterable[Iterable[Float[Tensor, " N"]]]:
    """Draw random vectors g for each part of the data, with A = Σ over parts of E g gᵀ.

    An operator's package registers here how its vectors are drawn. For each part, they come one at
    a time.

    Args:
        op: a Gauss-Newton or Fisher matrix.
        count: vectors of each part.
        seed: seed of the draws.

    Raises:
        ArgumentError: nothing is registered for this kind of operator.
    """
    raise ArgumentError(
        "diagonal: method='sampled' needs a Gauss-Newton or Fisher matrix (OuterProduct, "
        f"EmpiricalFisher, MonteCarloFisher), got {type(op).__name__}; use method='probes'"
    )


def _sampled(op: operators.LinearOperator, probes: int, seed: int) -> DiagonalEstimate:
    """Estimate the diagonal: the mean of g ⊙ g over each part's samples, summed over parts."""
    values = torch.zeros(op.shape[0], dtype=operators.working_dtype(op.dtype), device=op.device)
    errors = torch.zeros_like(values)
    for part in factor_samples(op, probes, seed):
        moments = EntryMoments(op, Probes(op, seed=seed))
        for sample in part:
            moments.take(sample.to(values.dtype).square()[:, None])
        values += moments.mean
        errors = torch.hypot(errors, moments.standard_errors())
    # a low sum of squares comes with a low spread: widen the error as norm_from_squares does
    relative = torch.nan_to_num((errors / values).square())
    errors *= 1 + 3 * relative
    return DiagonalEstimate(values=values, standard_errors=errors, probes=probes, method="sampled")


@operators.keeping
def diagonal(
    op: operators.LinearOperator | operators.Operand,
    probes: int = 16,
    seed: int = 0,
    *,
    method: str = "probes",
) -> DiagonalEstimate:
    """Estimate the diagonal of a square operator: mean over probes of z ⊙ A z, z with entries ±1.

    The variance of entry i is Σ_{j≠i} A_ij² / K. With `method="probes"` the result is exact, and
    its `method` reads "exact", where the operator has its own `diagonal()` or at most K rows.

    Args:
        op: square operator; a `Problem` stands for its Hessian.
        probes: K, at least 4; the error bars are tested for 16 and more.
        seed: seed of the probes.
        method: `probes`, or `sampled` for `OuterProduct`, `EmpiricalFisher` and `MonteCarloFisher`.
            `sampled` is the mean of g ⊙ g over random gradients g with E g gᵀ = A, which is never
            negative. Class weights of the loss are part of A.

    Returns:
        The entries and the standard error of each: √(sample variance / K · (K−1)/(K−3)).

    Raises:
        ArgumentError: too few probes, an operator that is not square, an unknown method, or
            `sampled` for another kind of operator.
        RunError: a product is not finite.

    Cost: K products; with `sampled`, one forward and K backward passes over the data.

    Source: Bekas, Kokiopoulou and Saad (2007), equation 2, with signs as probes.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> hb.diagonal(problem).values  # of its Hessian
        tensor([1., 4.])
    """
    op = operators.operator_of(op)
    check_name("method", method, METHODS)
    check_square("diagonal", op)
    check_probes("diagonal", probes, at_least=FEWEST_PROBES, seed=seed)
    if method == "sampled":
        return _sampled(op, probes, seed)
    closed_form = getattr(op, "diagonal", None)
    if closed_form is not None or op.shape[0] <= probes:
        values = assemble(op).diagonal() if closed_form is None else closed_form()
        nothing = torch.zeros_like(values)
        return DiagonalEstimate(values=values, standard_errors=nothing, method="exact")
    moments = EntryMoments(op, Probes(op, seed=seed))
    moments.add(probes)
    moments = moments.checked(seed)
    return DiagonalEstimate(
        values=moments.mean, standard_errors=moments.standard_errors(), probes=probes
    )
