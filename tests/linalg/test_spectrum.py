"""Spectral density, its error band, and averages of functions."""

import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon

from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg.estimators.probes import Probes
from hessblocks.linalg.operators.operator import DenseOperator
from hessblocks.linalg.spectra.spectrum import (
    Spectrum,
    lanczos_quadrature,
    spectral_density,
)
from tests.linalg.matrices import MATRICES, SIZE, operator, small_and_special, with_eigenvalues
from tests.linalg.test_estimators import NotFinite

EVERY = MATRICES | small_and_special()


def exact_spectrum(eigenvalues: torch.Tensor) -> Spectrum:
    weights = torch.full_like(eigenvalues, 1 / len(eigenvalues))
    return Spectrum.from_nodes(
        eigenvalues[None], weights[None], size=len(eigenvalues), method="exact"
    )


@pytest.mark.parametrize("name", EVERY)
def test_quadrature_integrates_polynomials_exactly(name: str) -> None:
    """Up to degree 2 S − 1: zᵀ Aᵏ z / N, also where a Krylov space ends early."""
    matrix = EVERY[name]
    op = DenseOperator(matrix, symmetric=True)
    probes = Probes(op, seed=0).draw(5)
    steps = min(4, len(matrix))
    nodes, weights = lanczos_quadrature(op, probes, steps)
    powers = probes
    for degree in range(2 * steps):
        expected = (probes * powers).sum(0) / len(matrix)
        torch.testing.assert_close(
            (weights * nodes**degree).sum(1), expected, rtol=1e-9, atol=1e-12
        )
        powers = matrix @ powers


@pytest.mark.parametrize("name", EVERY)
def test_a_long_quadrature_has_no_ghosts(name: str) -> None:
    """With as many steps as rows every weighted node is an eigenvalue, each weight once."""
    op = DenseOperator(EVERY[name], symmetric=True)
    nodes, weights = lanczos_quadrature(op, Probes(op, seed=0).draw(3), len(EVERY[name]))
    eigenvalues = torch.linalg.eigvalsh(EVERY[name])
    distance = (nodes[..., None] - eigenvalues).abs().amin(-1)
    assert float(distance[weights > 1e-10].max()) < 1e-7
    torch.testing.assert_close(weights.sum(1), torch.ones(3, dtype=torch.float64))


def one_by_one(matrix: torch.Tensor, probe: torch.Tensor, steps: int) -> torch.Tensor:
    """T of a single chain, each vector made orthogonal twice to all before; shorter if it ends."""
    basis, diagonal, beside = [probe / probe.norm()], [], []
    for _ in range(steps):
        new = matrix @ basis[-1]
        diagonal.append(basis[-1] @ new)
        for v in 2 * basis:
            new = new - (v @ new) * v
        beside.append(new.norm())
        if beside[-1] < 1e-12 * matrix.norm():
            break
        basis.append(new / beside[-1])
    off = torch.stack(beside)[: len(diagonal) - 1]
    return torch.stack(diagonal).diag() + off.diag(1) + off.diag(-1)


@pytest.mark.parametrize("together", [1, 2, 5])
@pytest.mark.parametrize("scale", [1.0, 1e-200])
def test_chains_together_are_single_chains_also_where_some_end(together: int, scale: float) -> None:
    """Beside random probes one is an eigenvector and one has two of them: these end early."""
    matrix, vectors = torch.linspace(-1, 3, 80).double().diag(), torch.eye(80).double()
    probes = Probes(DenseOperator(matrix, symmetric=True), seed=3).draw(5)
    probes[:, 1], probes[:, 3] = 7 * vectors[:, 5], vectors[:, 20] - 2 * vectors[:, 60]
    op = DenseOperator(scale * matrix, symmetric=True)
    runs = [lanczos_quadrature(op, some, 12) for some in probes.split(together, dim=1)]
    nodes, weights = (torch.cat(both) for both in zip(*runs, strict=True))
    assert torch.equal(lanczos_quadrature(op, probes[:, :together], 12)[0], runs[0][0])
    for probe, found, shares in zip(probes.T, nodes, weights, strict=True):
        expected, rotations = torch.linalg.eigh(one_by_one(matrix, probe, 12))
        weighted = shares > 1e-20
        torch.testing.assert_close(found[weighted] / scale, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(shares[weighted], rotations[0].square(), rtol=0, atol=1e-12)


def test_chains_that_lose_their_orthogonality_apart_stay_single_chains() -> None:
    """One probe holds an outlier, whose loss of orthogonality the other does not share."""
    values = torch.cat([torch.linspace(-1, 1, 299), torch.tensor([1e3])]).double()
    op = DenseOperator(values.diag(), symmetric=True)
    probes = Probes(op, seed=0).draw(2)
    probes[-1, 1] = 0
    nodes, weights = lanczos_quadrature(op, probes, 25)
    for probe, found, shares in zip(probes.T, nodes, weights, strict=True):
        expected, rotations = torch.linalg.eigh(one_by_one(values.diag(), probe, 25))
        torch.testing.assert_close(found / 1e3, expected / 1e3, rtol=0, atol=1e-12)
        torch.testing.assert_close(shares, rotations[0].square(), rtol=0, atol=1e-12)


def test_few_rows_are_diagonalised_and_reported_to_be_exact() -> None:
    spectrum = spectral_density(operator("flat"), steps=60)
    assert (spectrum.method, spectrum.probes) == ("exact", 0)
    torch.testing.assert_close(spectrum.nodes[0], torch.linalg.eigvalsh(MATRICES["flat"]))
    assert float(spectrum.standard_error.max()) == 0
    assert spectrum.average(torch.exp).method == "exact"


@pytest.mark.parametrize("name", [name for name in EVERY if len(EVERY[name]) == SIZE])
def test_the_density_integrates_to_one(name: str) -> None:
    spectrum = spectral_density(DenseOperator(EVERY[name], symmetric=True), steps=20)
    assert float(torch.trapezoid(spectrum.density, spectrum.grid)) == pytest.approx(1, abs=1e-3)
    assert float(spectrum.density.min()) >= 0


def test_an_average_is_the_trace_of_a_function() -> None:
    estimate = spectral_density(operator("flat"), steps=20, probes=20).average(torch.log)
    exact = float(torch.logdet(MATRICES["flat"])) / SIZE
    assert abs(estimate.value - exact) <= 3 * estimate.standard_error


def test_the_error_of_an_average_is_that_of_pooled_probes() -> None:
    """√(2 Var / (N K)) · √(1 + 2/K) for N rows and K probes; the values 0 and 2 have variance 1."""
    nodes = torch.tensor([[0.0, 2.0]] * 4, dtype=torch.float64)
    spectrum = Spectrum.from_nodes(nodes, torch.full_like(nodes, 0.5), size=100)
    mean = spectrum.average(lambda values: values)
    assert (mean.value, mean.probes) == (1.0, 4)
    assert mean.standard_error == pytest.approx((2 / 400) ** 0.5 * 1.5**0.5)


def test_chains_one_after_another_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = spectral_density(operator("pairs"), steps=20, seed=2)
    monkeypatch.setattr("hessblocks.linalg.spectra.spectrum.ROWS_OF_ALL", SIZE - 1)
    pieces = spectral_density(operator("pairs"), steps=20, seed=2)
    torch.testing.assert_close(pieces.density, whole.density, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(pieces.standard_error, whole.standard_error, rtol=1e-8, atol=1e-10)


def test_single_precision_gives_the_same_density() -> None:
    double = spectral_density(operator("block_hollow"), steps=40, broadening=0.5)
    single = spectral_density(operator("block_hollow", torch.float32), steps=40, broadening=0.5)
    density, _ = single.density_on(double.grid)
    torch.testing.assert_close(density, double.density, rtol=0, atol=1e-5)


def test_an_estimated_spectrum_is_near_the_exact_one() -> None:
    """The noise of ten probes on 400 eigenvalues is small beside a different shape."""
    matrix = with_eigenvalues(torch.linspace(-1, 1, 400) ** 3)
    op = DenseOperator(matrix, symmetric=True)
    exact = exact_spectrum(torch.linalg.eigvalsh(matrix))
    estimated = spectral_density(op, steps=80)
    other = exact_spectrum(torch.linspace(-1, 1, 400).double())
    densities = [s.density_on(exact.grid)[0] for s in (exact, estimated, other)]
    near, far = (jensenshannon(densities[0], density, base=2) for density in densities[1:])
    assert near < 0.1
    assert far > 0.3


def test_a_density_matches_the_normal_density_by_hand() -> None:
    spectrum = exact_spectrum(torch.tensor([2.0], dtype=torch.float64))
    density, error = spectrum.density_on(torch.tensor([2.0]), 0.5)
    assert float(density) == pytest.approx(1 / (0.5 * math.sqrt(2 * math.pi)))
    assert float(error) == 0


@pytest.mark.parametrize(
    ("eigenvalues", "width"),
    [([-1.0, 2.0, 4.0], 0.1), ([-3.0], 0.06), ([2.0, 2.0], 0.04), ([0.0], 0.02)],
)
def test_the_usual_broadening_is_a_fiftieth_of_the_range(
    eigenvalues: list[float], width: float
) -> None:
    spectrum = exact_spectrum(torch.tensor(eigenvalues, dtype=torch.float64))
    assert spectrum.broadening == pytest.approx(width)
    ends = [min(eigenvalues) - 4 * width, max(eigenvalues) + 4 * width]
    assert spectrum.grid[[0, -1]].tolist() == pytest.approx(ends)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="symmetric=True"):
        spectral_density(DenseOperator(torch.eye(SIZE)))
    with pytest.raises(ArgumentError, match="broadening"):
        spectral_density(operator("flat"), broadening=0.0)
    with pytest.raises(ArgumentError, match="steps"):
        spectral_density(operator("flat"), steps=0)
    with pytest.raises(RunError, match="not finite"):
        spectral_density(NotFinite(), steps=10)
