"""Stochastic Lanczos quadrature (SLQ): each probe's view of a spectrum as nodes and weights.

Letters: A symmetric (N, N), K probes z, S steps, V_k the basis of probe k, T_k its tridiagonal
matrix.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.linalg.estimators import Probes, assemble, check_probes, check_square, multiply
from hessblocks.linalg.operators import (
    LinearOperator,
    Operand,
    keeping,
    operator_of,
    unit_of,
    working_dtype,
)
from hessblocks.linalg.spectra.krylov import NEGLIGIBLE, check_definite, orthogonalise, row_lengths
from hessblocks.linalg.spectra.spectrum import Spectrum


@keeping
def spectral_density(
    op: LinearOperator | Operand,
    steps: int = 100,
    probes: int = 10,
    seed: int = 0,
    *,
    broadening: float | None = None,
    points: int = 512,
    probe_chunk: int | None = None,
) -> Spectrum:
    """Estimate a symmetric operator's spectral density by stochastic Lanczos quadrature.

    Lanczos from each probe gives nodes θ_s (eigenvalues of T_k) and weights τ_s (squared first
    entries of its eigenvectors). They fulfil Σ_s τ_s f(θ_s) = zᵀf(A) z / N exactly for polynomials
    f of degree up to 2 S − 1. The mean over probes is unbiased for the mean of f over the
    eigenvalues. All probes advance together. Each is kept orthogonal to its whole basis to the root
    of rounding, which leaves T exact to rounding (Simon 1984). The result is exact, and says so,
    where N ≤ S.

    Args:
        op: symmetric operator (N, N); a `Problem` stands for its Hessian.
        steps: S, products per probe.
        probes: K; the error bars are tested for 10 and more.
        seed: seed of the probes.
        broadening: standard deviation of the normal density put on each eigenvalue, in the unit of
            the eigenvalues; None: 2 % of the distance between the outermost nodes. Steps resolve
            about that distance over S, so that finer broadening shows nodes, not eigenvalues.
        points: points of the grid the density is given on.
        probe_chunk: probes advanced together; bounds memory, changes no probe.

    Returns:
        The spectrum: density on a grid with its standard error, moments, nodes and weights.

    Raises:
        ArgumentError: not symmetric, declared positive semi-definite and is not, no probes or no
            steps.
        RunError: a product is not finite.

    Cost: S K products; memory N · S · probe_chunk numbers.

    Source: Ubaru, Chen and Saad (2017), section 3; Ghorbani, Krishnan and Xiao (2019), algorithm 1.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> print(hb.spectral_density(problem))  # .plot() draws it
        spectrum of 2 eigenvalues from 1 to 4, mean 2.5, standard deviation 1.5 (exact)
    """
    op = operator_of(op)
    check_square("spectral_density", op, symmetric=True)
    rest = {"seed": seed, "steps": steps}
    check_probes("spectral_density", probes, at_least=1, probe_chunk=probe_chunk, **rest)
    if steps < 1:
        raise ArgumentError(f"spectral_density: steps: expected at least 1, got {steps}")
    if exact := op.shape[0] <= steps:
        matrix = assemble(op, probe_chunk).double()
        nodes = torch.linalg.eigvalsh((matrix + matrix.T) / 2).cpu()[None]
        weights = torch.full_like(nodes, 1 / op.shape[0])
    else:
        source = Probes(op, seed=seed)
        blocks = source.blocks(probes, probe_chunk)
        pieces = [lanczos_quadrature(op, drawn, steps) for drawn in blocks]
        nodes, weights = (torch.cat(both) for both in zip(*pieces, strict=True))
    check_definite(op, nodes)
    return Spectrum.from_nodes(
        nodes,
        weights,
        size=op.shape[0],
        method="exact" if exact else "estimate",
        broadening=broadening,
        points=points,
    )


def lanczos_quadrature(
    op: LinearOperator, probes: Float[Tensor, "size count"], steps: int
) -> tuple[Float[Tensor, "count steps"], Float[Tensor, "count steps"]]:
    """Run Lanczos from each probe: nodes and weights (summing to 1) of its Gauss quadrature.

    A probe whose Krylov space ends early keeps zero vectors from there on; its further nodes have
    weight 0.

    Returns:
        Nodes and weights, float64 on the CPU.
    """
    dtype = working_dtype(op.dtype)
    count, eps = probes.shape[1], torch.finfo(dtype).eps
    bases = torch.zeros(count, steps, op.shape[0], dtype=dtype, device=op.device)
    diagonal = torch.zeros(count, steps, dtype=torch.float64)
    beside = torch.zeros(count, steps, dtype=torch.float64)
    bases[:, 0] = probes.T
    bases[:, 0] /= row_lengths(bases[:, 0]).to(bases)[:, None]
    unit = 0.0  # of the coefficients, so that squares of products stay in the range of any dtype
    for step in range(steps):
        products = multiply(op, bases[:, step].T.to(op.dtype)).to(dtype).T.contiguous()
        if products.any() and (larger := unit_of(products)) > unit:
            diagonal *= unit / larger
            beside *= unit / larger
            unit = larger
        products /= unit or 1.0
        basis = bases[:, : step + 1]
        projections, left = orthogonalise(products, [basis], max(step - 1, 0), tolerance=eps**0.5)
        diagonal[:, step] = projections[:, -1]
        going = left > NEGLIGIBLE * eps * (diagonal.abs() + beside).amax(1)
        if step + 1 == steps or not going.any():  # every probe's Krylov space has ended
            break
        beside[:, step] = left.where(going, 0)
        lengths = left.where(going, torch.inf).to(products)  # a space that has ended goes on as 0
        torch.div(products, lengths[:, None], out=bases[:, step + 1])
    tridiagonal = torch.diag_embed(diagonal)
    tridiagonal += torch.diag_embed(beside[:, :-1], 1) + torch.diag_embed(beside[:, :-1], -1)
    nodes, rotations = torch.linalg.eigh(tridiagonal)
    return nodes * unit, rotations[:, 0].square()
