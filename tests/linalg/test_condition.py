"""Condition numbers against dense algebra, their intervals, and the products that they count."""

import numpy as np
import pytest
import torch

from hessblocks.errors import ArgumentError
from hessblocks.linalg.operators.operator import DenseOperator
from hessblocks.linalg.spectra.lanczos import condition_number, extreme_eigenvalues
from tests.linalg.test_lanczos import EVERY

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


@pytest.mark.bad_input
@pytest.mark.parametrize("tolerance", [-1.0, None])
def test_a_tolerance_that_is_not_a_share_is_refused(tolerance: float | None) -> None:
    with pytest.raises(ArgumentError, match="tolerance: expected a share of at least 0"):
        condition_number(DenseOperator(torch.eye(4)), tolerance=tolerance)  # type: ignore[arg-type]


@pytest.mark.parametrize("exponent", [-140, 140])
def test_the_ratio_does_not_depend_on_the_scale(exponent: int) -> None:
    matrix = torch.diag(torch.linspace(1, 3, 30)).double()
    ops = [DenseOperator(scale * matrix, symmetric=True) for scale in (1.0, 2.0**exponent)]
    plain, scaled = (condition_number(op, tolerance=0.1) for op in ops)
    assert scaled.value == plain.value
    assert scaled.largest == pytest.approx(plain.largest * 2.0**exponent)
    assert scaled.smallest == pytest.approx(plain.smallest * 2.0**exponent)


class BothCounted(DenseOperator):
    """Counts the vectors that it and its adjoint are multiplied with."""

    def __init__(self, matrix: torch.Tensor, **promises: bool) -> None:
        super().__init__(matrix, **promises)
        self.products = 0

    def _matmat(self, columns: torch.Tensor) -> torch.Tensor:
        self.products += columns.shape[1]
        return super()._matmat(columns)

    def _rmatmat(self, columns: torch.Tensor) -> torch.Tensor:
        self.products += columns.shape[1]
        return super()._rmatmat(columns)


@pytest.mark.parametrize("definite", [False, True])
@pytest.mark.parametrize("shape", [(30, 30), (40, 20), (20, 40)])
def test_a_condition_number_counts_its_products_and_those_of_the_adjoint(
    shape: tuple[int, int], definite: bool
) -> None:
    matrix = torch.randn(*shape, dtype=torch.float64)
    if definite:
        matrix = matrix @ matrix.T
    op = BothCounted(matrix, positive_semidefinite=definite)
    found = condition_number(op)
    assert found.products == op.products > 0


@pytest.mark.parametrize("definite", [False, True])
@pytest.mark.filterwarnings("ignore:condition_number. not converged")
@pytest.mark.filterwarnings("ignore:extreme_eigenvalues. not converged")
def test_the_lower_end_of_a_search_without_convergence_is_what_the_residuals_allow(
    definite: bool,
) -> None:
    matrix = torch.diag(torch.logspace(0, -8 if definite else -4, 800)).double()
    op = DenseOperator(matrix, symmetric=True, positive_semidefinite=definite)
    found = condition_number(op, max_products=60)
    square = op if definite else DenseOperator(matrix @ matrix, symmetric=True)
    ends = extreme_eigenvalues(square, 1, "both", max_products=60)
    (top, bottom), (above, below) = ends.values.tolist(), ends.residuals.tolist()
    expected = ((top - above) / (bottom + below)) ** (1.0 if definite else 0.5)
    assert not found.converged
    assert found.lower == pytest.approx(expected, rel=1e-6)
    assert found.lower < 0.9 * found.value
