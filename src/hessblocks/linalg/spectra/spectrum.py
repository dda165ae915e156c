"""Spectral density by stochastic Lanczos quadrature (SLQ), with averages of functions.

Each probe sees the spectrum as nodes and weights of a quadrature.

Letters: A symmetric (N, N) with N eigenvalues λ, K probes z, S steps, θ and τ nodes and weights of
one probe's quadrature, V_k the basis of probe k, T_k its tridiagonal matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.linalg import estimators, operators
from hessblocks.linalg.spectra.krylov import NEGLIGIBLE, check_definite, orthogonalise, row_lengths
from hessblocks.storage import Tabular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEFAULT_SHARE = 0.02
MARGIN = 4.0
NO_WEIGHT = 1e-12
DECADES = 6
"""Decades of the density that a plot shows."""
ROWS_OF_ALL = 1 << 17
"""Most rows of an operator for which the chains of all probes are in memory at once."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Spectrum(Tabular):
    """Spectral density with its uncertainty, and the quadrature that it comes from.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> spectrum = hb.spectral_density(problem)
        >>> print(spectrum.average(torch.log2))  # log determinant over the number of eigenvalues
        1 (exact)
    """

    nodes: Float[Tensor, "probes steps"]
    """Nodes of each probe's quadrature; for an exact spectrum, one row with the eigenvalues."""
    weights: Float[Tensor, "probes steps"]
    """Weight of each node; each row sums to 1."""
    size: int
    """N, the number of eigenvalues."""
    method: estimators.Method
    """`exact` (all eigenvalues) or `estimate` (random probes)."""
    broadening: float
    """Standard deviation of the normal density on each eigenvalue, in their unit."""
    grid: Float[Tensor, " points"]
    """Points of the density, rising, in the unit of the eigenvalues."""

    @cached_property
    def density(self) -> Float[Tensor, " points"]:
        """Share of eigenvalues per unit; integrates to 1."""
        return self.density_on(self.grid)[0]

    @cached_property
    def standard_error(self) -> Float[Tensor, " points"]:
        """Standard error of the density; 0 for exact spectra."""
        return self.density_on(self.grid)[1]

    @classmethod
    def from_nodes(
        cls,
        nodes: Float[Tensor, "probes steps"],
        weights: Float[Tensor, "probes steps"],
        *,
        size: int,
        method: estimators.Method = "estimate",
        broadening: float | None = None,
        points: int = 512,
    ) -> Spectrum:
        """Build a spectrum from quadratures.

        Args:
            nodes: nodes of each probe, float64.
            weights: weights of each node; rows sum to 1.
            size: number of eigenvalues.
            method: `exact` or `estimate`.
            broadening: see `spectral_density`.
            points: number of grid points, which cover all nodes ± four standard deviations.

        Returns:
            The spectrum with its density on a grid over all nodes.

        Raises:
            ArgumentError: a broadening that is not positive.
        """
        seen = nodes[weights > NO_WEIGHT]
        low, high = float(seen.min()), float(seen.max())
        default = DEFAULT_SHARE * ((high - low) or abs(high) or 1.0)
        width = default if broadening is None else broadening
        if not width > 0:
            raise ArgumentError(f"broadening: expected a width above 0, got {width}")
        ends = low - MARGIN * width, high + MARGIN * width
        grid = torch.linspace(*ends, points, dtype=torch.float64)
        return cls(
            nodes=nodes, weights=weights, size=size, method=method, broadening=width, grid=grid
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """List eigenvalue, density, standard_error and method at each point of the grid."""
        columns = (self.grid.tolist(), self.density.tolist(), self.standard_error.tolist())
        return [
            {"eigenvalue": at, "density": density, "standard_error": error, "method": self.method}
            for at, density, error in zip(*columns, strict=True)
        ]

    def __str__(self) -> str:
        """Print the number of eigenvalues, their range, mean and spread, and what was spent."""
        nodes = self.nodes[self.weights > NO_WEIGHT]
        unit = operators.unit_of(nodes)
        mean, square = (self.average(lambda x, k=k: (x / unit) ** k).value for k in (1, 2))  # type: ignore[misc]
        mean, spread = unit * mean, unit * math.sqrt(max(square - mean**2, 0.0))
        spent = "exact" if self.method == "exact" else f"{self.probes} probes"
        return (
            f"spectrum of {self.size:,} eigenvalues from {float(nodes.min()):.3g} to "
            f"{float(nodes.max()):.3g}, mean {mean:.3g}, standard deviation {spread:.3g} ({spent})"
        )

    def plot(self, ax: Axes | None = None) -> Figure:
        """Plot the density with a band of one standard error, on a logarithmic axis.

        Args:
            ax: axes of matplotlib to draw on; None for a figure of its own.

        Returns:
            The figure that was drawn on.
        """
        from hessblocks.drawing import plot
        from hessblocks.figures import Panel, Series

        highest = float(self.density.max())
        series = Series(
            name="density",
            x=tuple(self.grid.tolist()),
            y=tuple(self.density.tolist()),
            error=tuple(self.standard_error.tolist()) if self.probes else (),
        )
        panel = Panel(
            title=f"Spectrum of {self.size:,} eigenvalues",
            x_label="Eigenvalue",
            y_label="Share of eigenvalues per unit",
            series=(series,),
            y_scale="log",
            limits=(highest * 10.0**-DECADES, 3 * highest),
            band=True,
        )
        return plot(panel, ax)

    @property
    def probes(self) -> int:
        """Number of random probes; 0 for exact spectra."""
        return 0 if self.method == "exact" else self.nodes.shape[0]

    @property
    def moments(self) -> tuple[estimators.Estimate, ...]:
        """Means of the first four powers of the eigenvalues."""
        return tuple(self.average(lambda x, k=k: x**k) for k in range(1, 5))  # type: ignore[misc]

    def average(
        self, function: Callable[[Float[Tensor, "probes steps"]], Float[Tensor, "probes steps"]]
    ) -> estimators.Estimate:
        """Average f(λ) over the eigenvalues; N times that is the trace of f(A).

        Args:
            function: f, applied to a tensor of eigenvalues entry by entry.

        Returns:
            The mean with the standard error of `density_on`.
        """
        value, error = self._averages(function(self.nodes)[..., None])
        return estimators.Estimate(
            value=float(value), standard_error=float(error), probes=self.probes, method=self.method
        )

    def density_on(
        self, grid: Float[Tensor, " points"], broadening: float | None = None
    ) -> tuple[Float[Tensor, " points"], Float[Tensor, " points"]]:
        """Evaluate the density and its standard error at any points.

        Let f be the normal density around the point. For signs z the variance of zᵀf(A) z / N is at
        most 2/N times the variance of f over the eigenvalues, whatever the eigenvectors. The
        quadrature gives that variance too. The standard error is the root of it over K, times
        √(1 + 2/K).

        Args:
            grid: points, in the unit of the eigenvalues.
            broadening: see `Spectrum.broadening`; None: the spectrum's own.

        Returns:
            Density and standard error.
        """
        width = self.broadening if broadening is None else broadening
        distance = (grid.double() - self.nodes[..., None]) / width
        return self._averages(torch.exp(-0.5 * distance**2) / (width * math.sqrt(2 * math.pi)))

    def _averages(
        self, values: Float[Tensor, "probes steps points"]
    ) -> tuple[Float[Tensor, " points"], Float[Tensor, " points"]]:
        """Average a function over the eigenvalues from its values at the nodes, with errors."""
        count = self.nodes.shape[0]
        weights, unit = self.weights / count, operators.unit_of(values)
        mean = torch.einsum("ks,ksp->p", weights, values)
        if self.method == "exact":
            return mean, torch.zeros_like(mean)
        variance = torch.einsum("ks,ksp->p", weights, ((values - mean) / unit) ** 2)
        error = unit * (2 * variance / (self.size * count)).sqrt()
        return mean, error * operators.pooled_factor(count)


@operators.keeping
def spectral_density(
    op: operators.LinearOperator | operators.Operand,
    steps: int = 100,
    probes: int = 10,
    seed: int = 0,
    *,
    broadening: float | None = None,
    points: int = 512,
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

    Returns:
        The spectrum: density on a grid with its standard error, nodes and weights.

    Raises:
        ArgumentError: not symmetric, declared positive semi-definite and is not, no probes or no
            steps.
        RunError: a product is not finite.

    Cost: S K products; memory N S K numbers, above 131,072 rows N S of one probe at a time.

    Source: Ubaru, Chen and Saad (2017), section 3; Ghorbani, Krishnan and Xiao (2019), algorithm 1.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> print(hb.spectral_density(problem))  # .plot() draws it
        spectrum of 2 eigenvalues from 1 to 4, mean 2.5, standard deviation 1.5 (exact)
    """
    op = operators.operator_of(op)
    estimators.check_square("spectral_density", op, symmetric=True)
    estimators.check_probes("spectral_density", probes, at_least=1, seed=seed, steps=steps)
    if steps < 1:
        raise ArgumentError(f"spectral_density: steps: expected at least 1, got {steps}")
    if exact := op.shape[0] <= steps:
        matrix = estimators.assemble(op).double()
        nodes = torch.linalg.eigvalsh((matrix + matrix.T) / 2).cpu()[None]
        weights = torch.full_like(nodes, 1 / op.shape[0])
    else:
        source = estimators.Probes(op, seed=seed)
        blocks = source.blocks(probes, 1 if op.shape[0] > ROWS_OF_ALL else probes)
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
    op: operators.LinearOperator, probes: Float[Tensor, "size count"], steps: int
) -> tuple[Float[Tensor, "count steps"], Float[Tensor, "count steps"]]:
    """Run Lanczos from each probe: nodes and weights (summing to 1) of its Gauss quadrature.

    A probe whose Krylov space ends early keeps zero vectors from there on; its further nodes have
    weight 0.

    Returns:
        Nodes and weights, float64 on the CPU.
    """
    dtype = operators.working_dtype(op.dtype)
    count, eps = probes.shape[1], torch.finfo(dtype).eps
    bases = torch.zeros(count, steps, op.shape[0], dtype=dtype, device=op.device)
    diagonal = torch.zeros(count, steps, dtype=torch.float64)
    beside = torch.zeros(count, steps, dtype=torch.float64)
    bases[:, 0] = probes.T
    bases[:, 0] /= row_lengths(bases[:, 0]).to(bases)[:, None]
    unit = 0.0  # of the coefficients, so that squares of products stay in the range of any dtype
    for step in range(steps):
        products = estimators.multiply(op, bases[:, step].T.to(op.dtype)).to(dtype).T.contiguous()
        if products.any() and (larger := operators.unit_of(products)) > unit:
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
