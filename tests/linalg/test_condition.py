"""Condition numbers against dense algebra, and their intervals."""

import numpy as np
import pytest
import torch

from hessblocks.linalg import condition_number, spectral_density
from hessblocks.linalg.operators.operator import DenseOperator
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


def test_the_condition_number_of_a_rectangle_uses_its_shorter_side() -> None:
    matrix = torch.randn(20, 50, dtype=torch.float64)
    exact = float(torch.linalg.cond(matrix))
    assert condition_number(DenseOperator(matrix)).value == pytest.approx(exact, rel=1e-3)
    assert condition_number(DenseOperator(matrix.T)).value == pytest.approx(exact, rel=1e-3)


def test_a_smallest_value_below_rounding_makes_the_condition_number_infinite() -> None:
    op = DenseOperator(torch.diag(torch.tensor([1.0, 1e-15]).double()), positive_semidefinite=True)
    found = condition_number(op)
    assert found.value == found.upper == float("inf")
    assert found.lower > 1e13


def test_a_condition_number_without_convergence_is_a_lower_bound() -> None:
    op = DenseOperator(
        torch.diag(torch.logspace(0, -8, 800)).double(), symmetric=True, positive_semidefinite=True
    )
    with pytest.warns(UserWarning, match="not converged"):
        found = condition_number(op, max_products=60)
    assert found.value < 1e8 <= found.upper


@pytest.mark.parametrize("exponent", [-70, 70])
def test_the_ratio_does_not_depend_on_the_scale(exponent: int) -> None:
    matrix = torch.diag(torch.linspace(1, 3, 90))  # squares of the scale leave float32
    ops = [DenseOperator(scale * matrix, symmetric=True) for scale in (1.0, 2.0**exponent)]
    plain, scaled = (condition_number(op) for op in ops)
    assert scaled.value == pytest.approx(plain.value, rel=1e-6)
    assert plain.value == pytest.approx(3, rel=1e-3)


def test_the_moments_of_a_spectrum_are_those_of_its_eigenvalues() -> None:
    values = torch.linspace(-1, 2, 30, dtype=torch.float64)
    spectrum = spectral_density(DenseOperator(torch.diag(values), symmetric=True), probes=30)
    expected = [float((values**power).mean()) for power in (1, 2, 3, 4)]
    assert [moment.value for moment in spectrum.moments] == pytest.approx(expected)
