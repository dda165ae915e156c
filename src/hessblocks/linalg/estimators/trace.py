"""Hutchinson's trace estimator, and XTrace for spectra that decay.

Letters: A the matrix, N its size, z a probe with entries ±1, K probes, Q an orthonormal basis.
Of XTrace, m probes Ω = (ω_1 … ω_m), Y = AΩ, Q an orthonormal basis of Y, Q_i one
of Y without its i-th column, of rank r_i: Q_i Q_iᵀ = Q (I − s_i s_iᵀ) Qᵀ. H = QᵀA Q; k columns of
Y.

Draw the N entries of z independently, 1 or −1 with equal chance. Then E[z_i z_j] is 1 for i = j and
0 otherwise, in short E[z zᵀ] = I. A number is its own trace, and a trace allows cyclic exchange:

    E[zᵀA z] = E[tr(zᵀA z)] = E[tr(A z zᵀ)] = tr(A E[z zᵀ]) = tr A.

So one matvec A z gives an unbiased estimate of the trace. Its noise comes from off the diagonal
alone, since z_i² is 1 without any noise. With S = (A + Aᵀ) / 2

    zᵀA z = tr A + 2 Σ_{i<j} S_ij z_i z_j.

Products z_i z_j of different pairs are uncorrelated, each with mean 0 and variance 1:

    Var(zᵀA z) = 4 Σ_{i<j} S_ij² = 2 Σ_{i≠j} S_ij² ≤ 2 ‖A‖_F².

The mean over K probes has that variance over K, so that its error falls as 1/√K. An example with
numbers: A = [[2, 1], [1, 3]] has the trace 5. Up to its sign z is (1, 1) or (1, −1):

>>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
>>> [float(z @ A @ z) for z in torch.tensor([[1.0, 1.0], [1.0, -1.0]])]
[7.0, 3.0]

Their mean is the trace, 5; their variance is 4 = 2 (1² + 1²). A diagonal matrix has no noise,
whatever its size. A hard case is a matrix of ones, N = 100. Its trace is 100; the error of 48
probes is √(2 · 9900 / 48) = 20:

>>> from hessblocks.linalg import DenseOperator
>>> ones = DenseOperator(torch.ones(100, 100), symmetric=True)
>>> print(trace(ones))
119 ± 20 (48 probes)

There XTrace takes the large directions Q out first, tr A = tr(QᵀA Q) + tr((I − QQᵀ) A (I − QQᵀ)),
and estimates the small rest. Each probe serves both purposes in turn:

>>> round(trace(ones, method="xtrace").value, 3)
100.0
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.errors import check_name
from hessblocks.linalg import operators
from hessblocks.linalg.estimators.estimates import Estimate
from hessblocks.linalg.estimators.hutchinson import EntryMoments
from hessblocks.linalg.estimators.probes import (
    Probes,
    assemble,
    check_probes,
    check_square,
    multiply,
)

TraceMethod = Literal["hutchinson", "xtrace"]
SPANNED_BY_OTHERS = 1e-6
FEWEST_PROBES: dict[str, int] = {"hutchinson": 2, "xtrace": 8}


@operators.keeping
def trace(
    op: operators.LinearOperator | operators.Operand,
    probes: int = 48,
    seed: int = 0,
    method: TraceMethod = "hutchinson",
) -> Estimate:
    """Estimate the trace of a square operator by Hutchinson or XTrace.

    - `hutchinson`: the mean of zᵀA z. Spread spectra, any size.
    - `xtrace`: one Gaussian probe estimates what lies outside the range Q of A times the others,
      and tr(QᵀA Q) is exact; the mean over the probes. Decaying spectra; the smallest error, a
      cautious error bar.

    The result is exact, and says so, where the operator has its own `trace()` or is no larger than
    the products are many.

    Args:
        op: square operator, symmetric or not; a `Problem` stands for its Hessian.
        probes: products to spend in all; the error bars are tested from 16 (`hutchinson`) and
            32 (`xtrace`) on.
        seed: seed of the probes.
        method: see above.

    Returns:
        The trace. The standard error of `hutchinson` is
        √(2 Σ_i Var(z_i (A z)_i) / K · (1 + 2/K)). That is the variance of zᵀA z, found entry by
        entry, for which few probes are enough. That of `xtrace` is the jackknife's, 1.2 to 4 times
        the true one.

    Raises:
        ArgumentError: unknown method, too few probes, or an operator that is not square.
        RunError: a product is not finite.

    Cost: `probes` products; `xtrace` holds `probes` basis vectors.

    Source: Hutchinson (1990); Epperly, Tropp and Webber (2024), algorithm 2.1.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> print(hb.trace(problem))  # of its Hessian, diag(1, 4)
        5 (exact)
    """
    op = operators.operator_of(op)
    check_name("trace: method", method, get_args(TraceMethod))
    check_square("trace", op)
    check_probes("trace", probes, at_least=FEWEST_PROBES[method], seed=seed)
    if closed_form := getattr(op, "trace", None):
        return Estimate(value=float(closed_form()), method="exact")
    if op.shape[0] <= probes:
        entries = assemble(op).diagonal()
        return Estimate(value=float(entries.double().sum()), method="exact")
    if method == "xtrace":
        gaussian = Probes(op, seed=seed, distribution="gaussian")
        return _xtrace(op, gaussian, probes // 2)
    moments = EntryMoments(op, Probes(op, seed=seed))
    moments.add(probes)
    value, error = moments.checked(seed).trace()
    return Estimate(value=value, standard_error=error, probes=probes)


def _xtrace(op: operators.LinearOperator, source: Probes, count: int) -> Estimate:
    """Estimate the trace from `count` Gaussian probes, each left out of the sketch in turn.

        tr_i = tr(Q_iᵀA Q_i) + (N − r_i) / ‖P_i ω_i‖² · ω_iᵀ P_i A P_i ω_i,   P_i = I − Q_i Q_iᵀ

    is unbiased; the value is the mean over i. The standard error is the jackknife's: the root of
    the summed squared deviations of m values, each of which m − 1 of the probes give. By Efron and
    Stein it overstates the error of m − 1 probes on average. That error falls with each probe. So
    the bar is 1.2 to 4 times the true one. The usual formula, the deviation of the tr_i over
    √m, takes the tr_i as independent. They are not, and it is down to 0.6 of the truth.

    Args:
        op: square operator with more rows than `count`.
        source: where the Gaussian probes come from.
        count: m, at least 4.

    Returns:
        The estimate.

    Cost: 2 m products and m⁴ operations on small matrices.

    Source: Epperly, Tropp and Webber (2024), algorithm 2.1 and section 2.3 (norms of the probes);
    Efron and Stein (1981), theorem 2.
    """
    probes = source.draw(count)
    products = multiply(op, probes)
    unit = operators.unit_of(products)  # all below is of A / unit
    products = products / unit
    basis, triangle = torch.linalg.qr(products.to(operators.working_dtype(op.dtype)))
    basis_products = multiply(op, basis.to(op.dtype)) / unit
    factor = triangle.double().cpu()
    rounding = 10 * torch.finfo(triangle.dtype).eps
    captured_matrix = operators.inner_products(basis, basis_products).cpu()  # H = QᵀA Q
    pairs = ((basis, probes), (basis, products), (basis_products, probes))  # QᵀΩ, QᵀAΩ, (AQ)ᵀΩ
    coordinates = [operators.inner_products(left, right).cpu() for left, right in pairs]
    quadratic = operators.column_products(probes, products).cpu()  # ω_iᵀ A ω_i
    square_norms = operators.column_products(probes, probes).cpu()

    def traces(chosen: Int[Tensor, "sets k"]) -> Float[Tensor, "sets k"]:
        """Compute tr_i of the chosen probes, as if there were no others; several sets at once."""
        span, dual, ranks = _leave_one_out(factor[:, chosen].movedim(0, 1), rounding)
        of_probes, of_products, of_adjoint = (
            span.mT @ matrix[:, chosen].movedim(0, 1) for matrix in coordinates
        )
        inner = span.mT @ captured_matrix @ span
        captured = inner.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        captured = captured - (dual * (inner @ dual)).sum(-2)
        inside = of_probes - dual * (dual * of_probes).sum(-2, keepdim=True)
        crossed = inside * (inner @ inside - of_products - of_adjoint)
        remainder = quadratic[chosen] + crossed.sum(-2)
        left = square_norms[chosen] - inside.square().sum(-2)
        return captured + remainder * (op.shape[0] - ranks) / left

    every = torch.arange(count)
    fewer = torch.stack([every[every != left_out] for left_out in range(count)])
    with_fewer = traces(fewer).mean(-1)
    return Estimate(
        value=unit * float(traces(every[None]).mean()),
        standard_error=unit * float((with_fewer - with_fewer.mean()).square().sum().sqrt()),
        probes=2 * count,
    )


def _leave_one_out(columns: Tensor, rounding: float) -> tuple[Tensor, Tensor, Tensor]:
    """Find directions that span the chosen columns of R, s_i in their coordinates, and r_i.

    Directions below rounding are zero columns. A column that the others already span changes
    nothing when it is left out: s_i = 0.

    Returns:
        The directions, the s_i and the r_i, one column per set.
    """
    left, singular, right = torch.linalg.svd(columns, full_matrices=False)
    nonzero = (singular > rounding * columns.shape[-1] * singular[:, :1]).double()
    dual = right * (nonzero / torch.where(nonzero > 0, singular, 1.0))[..., None]
    length = torch.linalg.vector_norm(dual, dim=-2, keepdim=True)
    share = (right.square() * nonzero[..., None]).sum(-2, keepdim=True)
    alone = share > 1 - SPANNED_BY_OTHERS
    dual = torch.where(alone, dual / torch.where(alone, length, 1.0), 0.0)
    ranks = nonzero.sum(-1, keepdim=True) - alone[..., 0, :].double()
    return left * nonzero[:, None, :], dual, ranks
