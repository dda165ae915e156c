"""Extreme eigenvalues and condition numbers against dense algebra and scipy."""

import warnings

import hessian_eigenthings
import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh

from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg.operators.operator import DenseOperator, LinearOperator
from hessblocks.linalg.spectra.krylov import KrylovBasis
from hessblocks.linalg.spectra.lanczos import Which, extreme_eigenvalues
from tests.curvature.live_bytes import LiveBytes
from tests.linalg.matrices import MATRICES, SIZE, operator, small_and_special, with_eigenvalues


class Counted(DenseOperator):
    """A symmetric matrix whose products are counted; one of them may be infinite."""

    def __init__(self, matrix: torch.Tensor, infinite: int = 0) -> None:
        super().__init__(matrix, symmetric=True)
        self.count, self._infinite = 0, infinite

    def _matmat(self, columns: torch.Tensor) -> torch.Tensor:
        self.count += columns.shape[1]
        return super()._matmat(columns) / (0 if self.count == self._infinite else 1)


class Scaled(LinearOperator):
    """A diagonal matrix of any size, whose product is one new vector for each given one."""

    def __init__(self, size: int) -> None:
        super().__init__(
            (size, size), dtype=torch.float32, device=torch.device("cpu"), symmetric=True
        )
        self._diagonal = torch.linspace(-1, 2, size)

    def _matmat(self, columns: torch.Tensor) -> torch.Tensor:
        return (self._diagonal * columns.T).T


EVERY = MATRICES | small_and_special()


def padded(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with 100 further rows that have one eigenvalue, in the middle of its spectrum."""
    values = torch.linalg.eigvalsh(matrix)
    middle = torch.full((100,), float(values[0] + values[-1]) / 2).double()
    return torch.block_diag(matrix, middle.diag())


LARGER = {f"{name}, padded": padded(matrix) for name, matrix in EVERY.items()}
"""Too large to be assembled."""
SOLVED = EVERY | LARGER
DAILY = ("pairs", "zero", "one_by_one", "block_hollow", "double, padded", "flat, padded")
"""One of each kind; all of them take half a minute."""
solved = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in DAILY else [pytest.mark.slow]) for name in SOLVED],
)
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}


@solved
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("which", ["largest", "smallest", "both"])
def test_eigenvalues_are_those_of_dense_algebra(name: str, dtype: torch.dtype, which: str) -> None:
    """Multiple eigenvalues are found as often as they occur, and residuals are what they say."""
    matrix = SOLVED[name]
    exact = torch.linalg.eigvalsh(matrix).flip(0)
    scale = max(float(exact.abs().max()), 1e-300)
    op = DenseOperator(matrix.to(dtype), symmetric=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = extreme_eigenvalues(op, min(3, len(exact)), which, tolerance=TOLERANCES[dtype])
    top = min(3, len(exact)) if which != "smallest" else 0
    bottom = min(3, len(exact) - top) if which != "largest" else 0
    wanted = torch.cat([exact[:top], exact[len(exact) - bottom :]])
    assert found.converged
    assert float((found.values - wanted).abs().max()) <= float(found.residuals.max()) + 1e-6 * scale
    measured = torch.linalg.vector_norm(
        matrix @ found.vectors.double() - found.vectors.double() * found.values, dim=0
    )
    rounding = 100 * torch.finfo(dtype).eps * scale
    assert bool((measured <= 1.1 * found.residuals + rounding).all())
    if found.method == "exact":
        torch.testing.assert_close(measured, found.residuals, rtol=0, atol=rounding)
    assert float((torch.linalg.vector_norm(found.vectors.double(), dim=0) - 1).abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["pairs", "block_hollow", "dominant"])
def test_eigenvalues_are_those_of_scipy(name: str) -> None:
    op = operator(name)
    ours = extreme_eigenvalues(op, 2, "both", tolerance=1e-10).values
    theirs = np.sort(eigsh(op.to_scipy(), k=4, which="BE", return_eigenvectors=False))[::-1]
    np.testing.assert_allclose(ours.numpy(), theirs.copy(), rtol=0, atol=1e-9)


@solved
@pytest.mark.parametrize("count", [1, 3])
def test_the_largest_in_size_are_those_of_dense_algebra(name: str, count: int) -> None:
    """Of either sign, in falling order of their values; scipy's word for it is LM."""
    exact = torch.linalg.eigvalsh(SOLVED[name])
    count = min(count, len(exact))
    sizes = exact.abs().sort(descending=True).values[:count]
    op = DenseOperator(SOLVED[name], symmetric=True)
    found = extreme_eigenvalues(op, count, "LM", tolerance=1e-7)
    assert found.converged
    torch.testing.assert_close(
        found.values.abs().sort(descending=True).values, sizes, rtol=0, atol=1e-6
    )
    assert torch.equal(found.values, found.values.sort(descending=True).values)
    named = extreme_eigenvalues(op, count, "magnitude", tolerance=1e-7)
    assert torch.equal(named.values, found.values)


@pytest.mark.parametrize(("theirs", "ours"), [("LA", "largest"), ("SA", "smallest")])
def test_words_of_scipy_name_the_same_ends(theirs: str, ours: str) -> None:
    op = operator("block_hollow")
    values = extreme_eigenvalues(op, 2, theirs, tolerance=1e-10).values  # type: ignore[arg-type]
    assert torch.equal(values, extreme_eigenvalues(op, 2, ours, tolerance=1e-10).values)  # type: ignore[arg-type]
    scipys = np.sort(eigsh(op.to_scipy(), k=2, which=theirs, return_eigenvectors=False))[::-1]
    np.testing.assert_allclose(values.numpy(), scipys.copy(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("which", "count"), [("LM", 1), pytest.param("both", 1, marks=pytest.mark.slow), ("both", 4)]
)
def test_a_search_holds_its_basis_and_two_vectors(which: Which, count: int) -> None:
    """Counted where tensors are made and freed, results and starts included, over a restart."""
    size, basis_size = 400_000, 24
    op = Scaled(size)
    with LiveBytes() as live, pytest.warns(UserWarning, match="not converged"):
        found = extreme_eigenvalues(op, count, which, basis_size=basis_size, max_products=30)
    assert found.products >= 30
    assert live.peak / (4 * size) <= basis_size + 2 + 0.75  # pieces
    assert found.vectors.untyped_storage().nbytes() == found.vectors.nbytes


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("basis_size", "share"), [(60, 1e-9), (20, 0.4)])
def test_residuals_of_an_operator_that_is_not_symmetric_are_those_of_its_products(
    count: int, basis_size: int, share: float
) -> None:
    """T is made symmetric, so that such an operator has wrong values: the residual says how wrong,
    exactly without restarts."""
    matrix = MATRICES["flat"] + 0.1 * torch.triu(torch.ones(SIZE, SIZE).double(), 1)
    op = DenseOperator(matrix, symmetric=True)
    with pytest.warns(UserWarning, match="not converged"):
        found = extreme_eigenvalues(op, count, "both", basis_size=basis_size, max_products=38)
    measured = torch.linalg.vector_norm(
        matrix @ found.vectors - found.vectors * found.values, dim=0
    )
    assert float(measured.min()) > 0.1
    torch.testing.assert_close(measured, found.residuals, rtol=share, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_residuals_are_no_worse_than_those_of_hessian_eigenthings(seed: int) -> None:
    """At equal products and from the same vector: the same Krylov space, in float32."""
    matrix = with_eigenvalues(torch.logspace(0, -4, 500).double()).float()
    op = Counted((matrix + matrix.T) / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = extreme_eigenvalues(op, 1, "LM", max_products=12, tolerance=0, seed=seed)
    foreign = hessian_eigenthings.LambdaOperator(op.__matmul__, 500)
    theirs = hessian_eigenthings.lanczos(foreign, k=1, max_iter=ours.products, seed=seed)
    assert float(ours.residuals[0]) <= 1.01 * float(theirs.residuals[0]) + 1e-6


RESTARTED = [
    pytest.param(
        *(limit, vectors),
        # the smaller the basis, the more restarts
        marks=[]
        if (limit, vectors) in (("basis_size", 12), ("memory_limit", 24))
        else [pytest.mark.slow],
    )
    for limit in ("basis_size", "memory_limit")
    for vectors in (8, 12, 13, 24)
]


@pytest.mark.parametrize(("limit", "vectors"), RESTARTED)
def test_a_restarted_basis_finds_what_a_large_one_finds(limit: str, vectors: int) -> None:
    """8 are the least that are taken: the values wanted, a new vector and the next one."""
    op = DenseOperator(with_eigenvalues(torch.linspace(-1, 1, 400) ** 3), symmetric=True)
    large = extreme_eigenvalues(op, 3, "both", basis_size=401, tolerance=1e-9)
    bound = vectors if limit == "basis_size" else (vectors + 1) * 400 * 8 + 1
    small = extreme_eigenvalues(
        op, 3, "both", tolerance=1e-9, max_products=10_000, **{limit: bound}
    )
    assert large.converged
    assert large.restarts == 1  # what has converged is kept alone when a random vector follows
    assert small.converged
    assert small.basis_size == vectors
    assert small.restarts > 5
    assert f"a basis of {vectors}, {small.restarts} restarts" in str(small)
    with pytest.raises(ArgumentError, match=f"{limit}: expected at least .*8 vectors"):
        extreme_eigenvalues(op, 3, "both", **{limit: 7 if limit == "basis_size" else 8 * 400 * 8})
    torch.testing.assert_close(small.values, large.values, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_the_basis_stays_orthonormal(name: str) -> None:
    """Without re-orthogonalisation a converged Ritz value returns as a ghost."""
    size = len(EVERY[name])
    op = DenseOperator(EVERY[name], symmetric=True)
    basis = KrylovBasis(op, room=size + 1, seed=0)
    while not basis.complete:
        basis.extend()
    identity = torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(basis.vectors.T @ basis.vectors, identity, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        torch.linalg.eigvalsh(basis.projection) * basis.unit,
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
    assert found.products == 20


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="symmetric=True"):
        extreme_eigenvalues(DenseOperator(torch.eye(SIZE)))
    with pytest.raises(ArgumentError, match="smallest"):
        extreme_eigenvalues(operator("flat"), which="lowest")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="basis_size"):
        extreme_eigenvalues(operator("flat"), 10, basis_size=20, max_products=50)
    for count in (0, SIZE + 1):
        with pytest.raises(
            ArgumentError, match=f"count: expected at least 1.*most {SIZE}, the.*got {count}"
        ):
            extreme_eigenvalues(operator("flat"), count)
    for name in ("count", "basis_size", "max_products", "seed"):
        with pytest.raises(ArgumentError, match=f"{name}: expected a whole number, got 1.5"):
            extreme_eigenvalues(operator("flat"), **{name: 1.5})  # type: ignore[arg-type]
    for tolerance in (-1.0, float("nan"), "x"):
        with pytest.raises(ArgumentError, match="tolerance: expected a share"):
            extreme_eigenvalues(operator("flat"), tolerance=tolerance)  # type: ignore[arg-type]
    for limit in (0, 0.5):
        with pytest.raises(ArgumentError, match="memory_limit: expected a whole number"):
            extreme_eigenvalues(operator("flat"), memory_limit=limit)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="not finite"):
        extreme_eigenvalues(Counted(MATRICES["flat"], infinite=3))


@solved
@pytest.mark.parametrize("which", ["largest", "smallest", "both"])
def test_residuals_of_one_chain_are_those_of_a_further_product(name: str, which: Which) -> None:
    """Without a random vector that follows nothing is put aside."""
    found = extreme_eigenvalues(
        DenseOperator(SOLVED[name], symmetric=True), 1, which, tolerance=1e-6
    )
    measured = torch.linalg.vector_norm(
        SOLVED[name] @ found.vectors - found.vectors * found.values, dim=0
    )
    scale = float(SOLVED[name].abs().max())
    torch.testing.assert_close(measured, found.residuals, rtol=0, atol=1e-13 * max(scale, 1))


DEGENERATE = torch.cat([torch.tensor([3.0, 3, 3, 2, 2, 1]), torch.linspace(-0.3, 0.3, 194)])


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]
)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_every_copy_is_found_by_single_vectors(count: int, sign: int, seed: int) -> None:
    """One chain has a part in one copy only; random vectors find the others, and products are
    counted."""
    op = Counted(with_eigenvalues(sign * DEGENERATE))
    found = extreme_eigenvalues(
        op, count, "largest" if sign > 0 else "smallest", tolerance=1e-6, seed=seed
    )
    torch.testing.assert_close(
        (sign * found.values).sort(descending=True).values,
        DEGENERATE[:count].double(),
        rtol=0,
        atol=1e-6,
    )
    assert found.converged
    assert found.method == "estimate"
    assert found.products == op.count < 80


@pytest.mark.parametrize("gap", [1e-3, pytest.param(1e-6, marks=pytest.mark.slow), 1e-9])
@pytest.mark.parametrize("scale", [1.0, 1e-22, pytest.param(1e15, marks=pytest.mark.slow)])
def test_clusters_are_told_apart_as_far_as_the_tolerance(gap: float, scale: float) -> None:
    """Of a spectrum of both signs, in float32 too."""
    values = torch.cat(
        [torch.tensor([1.0, 1 - gap, -1.0, gap - 1]), torch.linspace(-0.8, 0.8, 196)]
    ).double()
    for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 1e-4)):
        op = Counted((with_eigenvalues(values) * scale).to(dtype))
        found = extreme_eigenvalues(op, 2, "both", tolerance=tolerance)
        expected = scale * torch.tensor([1.0, 1 - gap, gap - 1, -1.0]).double()
        assert found.converged
        assert found.products == op.count
        torch.testing.assert_close(found.values, expected, rtol=0, atol=2 * tolerance * scale)


def test_a_search_that_ends_before_its_random_vector_has_not_converged() -> None:
    """All residuals are small by then; one copy may be missing."""
    op = DenseOperator(with_eigenvalues(DEGENERATE), symmetric=True)
    whole = extreme_eigenvalues(op, 2, "largest", tolerance=1e-6)
    with pytest.warns(UserWarning, match="no sign of a missed one in a random vector"):
        found = extreme_eigenvalues(op, 2, "largest", tolerance=1e-6, max_products=12)
    assert not found.converged
    assert float(found.residuals.max()) < 1e-6 * 3
    assert float(found.values[1]) == pytest.approx(2, abs=1e-5)
    assert float(whole.values[1]) == pytest.approx(3, abs=1e-5)


@pytest.mark.parametrize("which", ["largest", "both", "magnitude"])
def test_a_matrix_smaller_than_the_work_is_assembled(which: Which) -> None:
    op = Counted(MATRICES["block_hollow"])
    found = extreme_eigenvalues(op, 10, which)
    exact = torch.linalg.eigvalsh(MATRICES["block_hollow"])
    assert found.method == "exact"
    assert found.converged
    assert found.products == op.count == SIZE
    assert float(found.residuals.max()) < 1e-12
    assert float(found.values[0]) == pytest.approx(float(exact[-1]), rel=1e-12)
    assert "exact" in str(found)


def test_a_search_that_fails_is_followed_by_dense_algebra() -> None:
    """The smallest of these lie within rounding of each other."""
    values = torch.logspace(-14, 0, 120, dtype=torch.float64)
    op = Counted(with_eigenvalues(values))
    found = extreme_eigenvalues(op, 3, "smallest", max_products=240)
    assert found.method == "exact"
    assert found.converged
    assert found.products == op.count <= 240
    with pytest.warns(UserWarning, match="not converged"):
        assert extreme_eigenvalues(op, 3, "smallest", max_products=239).method != "exact"
    full = extreme_eigenvalues(op, 3, "smallest", max_products=240, basis_size=121)
    assert (full.method, full.converged) == ("estimate", True)


def test_without_a_search_for_copies_one_chain_finds_one_of_them() -> None:
    op = Counted(with_eigenvalues(DEGENERATE))
    found = extreme_eigenvalues(op, 3, "largest", tolerance=1e-6, copies=False)
    assert found.converged
    assert [round(value, 5) for value in found.values.tolist()] == [3, 2, 1]
    assert found.products == op.count < 20
