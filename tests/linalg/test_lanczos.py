"""Extreme eigenvalues and condition numbers against dense algebra and scipy."""

import warnings

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh

from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg.operators.operator import DenseOperator
from hessblocks.linalg.spectra.condition import condition_number
from hessblocks.linalg.spectra.krylov import KrylovBasis
from hessblocks.linalg.spectra.lanczos import extreme_eigenvalues
from tests.linalg.matrices import MATRICES, SIZE, operator, small_and_special, with_eigenvalues
from tests.linalg.test_estimators import NotFinite

EVERY = MATRICES | small_and_special()
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("which", ["largest", "smallest", "both"])
def test_eigenvalues_are_those_of_dense_algebra(name: str, dtype: torch.dtype, which: str) -> None:
    """Multiple eigenvalues are found as often as they occur, and residuals are what they say."""
    exact = torch.linalg.eigvalsh(EVERY[name]).flip(0)
    scale = max(float(exact.abs().max()), 1e-300)
    op = DenseOperator(EVERY[name].to(dtype), symmetric=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = extreme_eigenvalues(op, 3, which, tolerance=TOLERANCES[dtype])
    top = min(3, len(exact)) if which != "smallest" else 0
    bottom = min(3, len(exact) - top) if which != "largest" else 0
    wanted = torch.cat([exact[:top], exact[len(exact) - bottom :]])
    assert found.converged
    assert float((found.values - wanted).abs().max()) <= float(found.residuals.max()) + 1e-6 * scale
    measured = torch.linalg.vector_norm(
        EVERY[name] @ found.vectors.double() - found.vectors.double() * found.values, dim=0
    )
    rounding = 100 * torch.finfo(dtype).eps * scale
    torch.testing.assert_close(measured, found.residuals, rtol=0, atol=rounding)
    assert float((torch.linalg.vector_norm(found.vectors.double(), dim=0) - 1).abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["pairs", "block_hollow", "dominant"])
def test_eigenvalues_are_those_of_scipy(name: str) -> None:
    op = operator(name)
    ours = extreme_eigenvalues(op, 2, "both", tolerance=1e-10).values
    theirs = np.sort(eigsh(op.to_scipy(), k=4, which="BE", return_eigenvectors=False))[::-1]
    np.testing.assert_allclose(ours.numpy(), theirs.copy(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("basis_size", [12, 13, 24])
def test_a_restarted_basis_finds_what_a_large_one_finds(basis_size: int) -> None:
    """12 is the least that is taken: the values wanted and two blocks."""
    op = DenseOperator(with_eigenvalues(torch.linspace(-1, 1, 400) ** 3), symmetric=True)
    large = extreme_eigenvalues(op, 3, "both", basis_size=400, tolerance=1e-9)
    small = extreme_eigenvalues(
        op, 3, "both", basis_size=basis_size, tolerance=1e-9, max_products=10_000
    )
    assert large.converged
    assert small.converged
    torch.testing.assert_close(small.values, large.values, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_the_basis_stays_orthonormal(name: str) -> None:
    """Without re-orthogonalisation a converged Ritz value returns as a ghost."""
    size = len(EVERY[name])
    op = DenseOperator(EVERY[name], symmetric=True)
    basis = KrylovBasis(op, block=min(2, size), room=size, seed=0, probe_chunk=None)
    while not basis.complete:
        basis.extend()
    identity = torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(basis.vectors.T @ basis.vectors, identity, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        torch.linalg.eigvalsh(basis.projection),
        torch.linalg.eigvalsh(EVERY[name]),
        rtol=0,
        atol=1e-11,
    )


def test_a_search_that_does_not_converge_warns_and_says_so() -> None:
    op = DenseOperator(torch.diag(torch.linspace(0, 1, 500)).double(), symmetric=True)
    with pytest.warns(UserWarning, match="not converged after .* raise max_products"):
        found = extreme_eigenvalues(op, 4, "largest", max_products=20)
    assert not found.converged
    assert float(found.residuals.max()) > 1e-6
    assert found.products <= 24 + 4


NOT_NEGATIVE = [name for name in EVERY if float(torch.linalg.eigvalsh(EVERY[name])[0]) > -1e-12]


@pytest.mark.parametrize(
    ("name", "definite"),
    [(name, False) for name in EVERY] + [(name, True) for name in NOT_NEGATIVE],
)
def test_the_condition_number_is_that_of_dense_algebra(name: str, definite: bool) -> None:
    eigenvalues = torch.linalg.eigvalsh(EVERY[name])
    sizes = eigenvalues.abs().sort().values
    found = condition_number(
        DenseOperator(EVERY[name], symmetric=True, positive_semidefinite=definite)
    )
    if name == "zero":
        assert np.isnan(found.value)
        return
    exact = float(sizes[-1] / sizes[0]) if sizes[0] > 1e-13 else float("inf")
    assert found.value == pytest.approx(exact, rel=1e-3)
    assert found.lower <= found.value * (1 + 1e-12)
    assert found.upper >= found.value * (1 - 1e-12)
    assert found.converged


def test_the_condition_number_of_a_rectangle_uses_its_shorter_side() -> None:
    matrix = torch.randn(20, 50, dtype=torch.float64)
    exact = float(torch.linalg.cond(matrix))
    assert condition_number(DenseOperator(matrix)).value == pytest.approx(exact, rel=1e-3)
    assert condition_number(DenseOperator(matrix.T)).value == pytest.approx(exact, rel=1e-3)


def test_a_smallest_value_below_rounding_makes_the_condition_number_infinite() -> None:
    op = DenseOperator(torch.diag(torch.tensor([1.0, 1e-15]).double()), positive_semidefinite=True)
    found = condition_number(op)
    assert found.smallest > 0
    assert found.value == found.upper == float("inf")
    assert found.lower > 1e13


def test_a_condition_number_without_convergence_is_a_lower_bound() -> None:
    op = DenseOperator(
        torch.diag(torch.logspace(0, -8, 800)).double(), symmetric=True, positive_semidefinite=True
    )
    with pytest.warns(UserWarning, match="lower bound"):
        found = condition_number(op, max_products=60)
    assert not found.converged
    assert found.value < 1e8 <= found.upper


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(ArgumentError, match="symmetric=True"):
        extreme_eigenvalues(DenseOperator(torch.eye(SIZE)))
    with pytest.raises(ArgumentError, match="smallest"):
        extreme_eigenvalues(operator("flat"), which="lowest")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="basis_size"):
        extreme_eigenvalues(operator("flat"), 10, basis_size=20)
    with pytest.raises(ArgumentError, match="count"):
        extreme_eigenvalues(operator("flat"), 0)
    with pytest.raises(RunError, match="not finite"):
        extreme_eigenvalues(NotFinite())
