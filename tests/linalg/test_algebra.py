"""Operators to calculate with: sums, products, inverses, against dense matrices and curvlinops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hessblocks as hb
from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg import DenseOperator, LinearOperator, identity_like, inverse, solve

SIZE = 12


def matrix(seed: int, *, definite: bool = False) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    found = torch.randn(SIZE, SIZE, generator=draw, dtype=torch.float64)
    found = found @ found.T if definite else found + found.T
    return found / SIZE


def operator(seed: int, *, definite: bool = False) -> DenseOperator:
    return DenseOperator(
        matrix(seed, definite=definite), symmetric=True, positive_semidefinite=definite
    )


def test_sums_multiples_and_products_are_those_of_the_matrices() -> None:
    a, b = operator(0), operator(1, definite=True)
    dense_a, dense_b, one = matrix(0), matrix(1, definite=True), torch.eye(SIZE).double()
    cases: list[tuple[LinearOperator, Tensor]] = [
        (2 * a + 0.1 * identity_like(a), 2 * dense_a + 0.1 * one),
        (a * 3 - b, 3 * dense_a - dense_b),
        (-(a - b) + b, 2 * dense_b - dense_a),
        (a @ b, dense_a @ dense_b),
        ((a + b) @ (a - b), (dense_a + dense_b) @ (dense_a - dense_b)),
        ((a @ b).adjoint(), dense_b @ dense_a),
    ]
    for found, expected in cases:
        torch.testing.assert_close(found.dense(), expected)
        torch.testing.assert_close(found @ expected[0], expected @ expected[0])
        torch.testing.assert_close(found.adjoint().dense(), expected.T)


def test_what_operators_promise_is_carried_on() -> None:
    a, b = operator(0), operator(1, definite=True)
    assert (a + b).symmetric
    assert not (a + b).positive_semidefinite
    assert (2 * b + identity_like(b)).positive_semidefinite
    assert not (b - identity_like(b)).positive_semidefinite
    assert not (a @ b).symmetric
    assert len((2 * a + 0.1 * identity_like(a) - b).terms) == 3  # type: ignore[attr-defined]


def test_what_cannot_be_added_is_refused() -> None:
    a = operator(0)
    wide = DenseOperator(torch.zeros(SIZE, 3).double())
    single = DenseOperator(matrix(0).float())
    for other in (wide, single):
        with pytest.raises(ArgumentError, match="differ in shape, dtype or device"):
            _ = a + other
    with pytest.raises(ArgumentError, match="expected 3 rows on the right, got 12"):
        _ = wide @ a
    with pytest.raises(ArgumentError, match="identity_like"):
        _ = a + 1  # type: ignore[operator]
    for factor in (float("nan"), True, "2"):
        with pytest.raises(ArgumentError, match="finite number as factor"):
            _ = a * factor  # type: ignore[operator]
    with pytest.raises(ArgumentError, match="square"):
        identity_like(wide)


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_an_inverse_is_that_of_the_matrix(damping: float) -> None:
    a, dense = operator(2, definite=True), matrix(2, definite=True)
    right = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(0)).double()
    right[:, 1] = 0
    expected = torch.linalg.solve(dense + damping * torch.eye(SIZE).double(), right)
    found = solve(a, right, damping=damping, tolerance=1e-12)
    torch.testing.assert_close(found.values, expected, rtol=1e-6, atol=1e-8)
    assert found.converged
    assert found.reasons == ("converged",) * 3
    assert float(found.residuals.max()) < 1e-11
    assert 3 < found.products <= 3 * (3 * SIZE)
    one = inverse(a, damping=damping, tolerance=1e-12) @ right[:, 0]
    torch.testing.assert_close(one, expected[:, 0], rtol=1e-6, atol=1e-8)
    assert repr(found).startswith("solutions of 3 systems, residuals up to ")
    assert [row["reason"] for row in found.to_rows()] == ["converged"] * 3


def test_negative_curvature_is_reported_and_not_inverted() -> None:
    a = operator(0)
    found = solve(a, torch.ones(SIZE).double())
    assert found.reasons == ("negative curvature",)
    with pytest.raises(RunError, match=r"negative curvature.*more damping"):
        _ = inverse(a) @ torch.ones(SIZE).double()
    assert solve(a, torch.ones(SIZE).double(), damping=5.0).converged


def test_what_did_not_converge_is_reported_with_its_residual() -> None:
    a, right = operator(2, definite=True), torch.ones(SIZE).double()
    found = solve(a, right, max_products=2)
    assert found.reasons == ("limit",)
    own = float((right - matrix(2, definite=True) @ found.values).norm() / right.norm())
    assert float(found.residuals[0]) == pytest.approx(own)
    with pytest.raises(RunError, match="limit, 3 products"):
        _ = inverse(a, max_products=2) @ right


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"damping": -1.0}, "damping: expected a number of at least 0"),
        ({"damping": float("nan")}, "damping"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"max_products": 0}, "max_products"),
        ({"max_products": "x"}, "max_products: expected a whole number of at least 1, got 'x'"),
        ({"damping": "x"}, "damping: .*got 'x'"),
    ],
)
def test_a_bad_argument_is_one_sentence(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        solve(operator(2, definite=True), torch.ones(SIZE).double(), **changed)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"expected an operator.*got int"):
        identity_like(3)  # type: ignore[arg-type]
    a = operator(2, definite=True)
    with pytest.raises(ArgumentError, match="need a symmetric one"):
        inverse(a @ a)
    with pytest.raises(ArgumentError, match=r"right: expected \(12,\)"):
        solve(a, torch.ones(SIZE + 1).double())
    with pytest.raises(ArgumentError, match="float32"):
        solve(a, torch.ones(SIZE))
    with pytest.raises(RunError, match="not finite"):
        solve(DenseOperator(torch.full((2, 2), torch.nan), symmetric=True), torch.ones(2))


@pytest.mark.filterwarnings("ignore")
def test_a_damped_hessian_is_inverted_as_curvlinops_inverts_it() -> None:
    curvlinops = pytest.importorskip("curvlinops")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    batch = (torch.randn(6, 3).double(), torch.randint(0, 2, (6,)))
    problem = hb.Problem(model.double(), [batch], loss="classification")
    outer = hb.OuterProduct(problem)
    damped = outer + 0.1 * hb.identity_like(outer)
    vector = torch.randn(outer.shape[0]).double()
    theirs = curvlinops.CGInverseLinearOperator(damped.to_curvlinops())
    ours = hb.inverse(outer, damping=0.1, tolerance=1e-10) @ vector
    torch.testing.assert_close(ours, theirs @ vector, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ours, torch.linalg.solve(damped.dense(), vector))


def test_a_residual_that_rounding_hides_is_reported() -> None:
    turn, _ = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(0)))
    a = DenseOperator((turn * torch.logspace(-5, 0, 40)) @ turn.T, positive_semidefinite=True)
    right = torch.ones(40)
    found = solve(a, right)
    own = float((right - a @ found.values).norm() / right.norm())
    assert own > 1e-4
    assert float(found.residuals[0]) == pytest.approx(own, rel=0.1)
    assert found.reasons == ("rounding",)
    with pytest.raises(RunError, match="rounding"):
        _ = inverse(a) @ right


def test_bad_arguments_of_an_inverse_are_refused_when_it_is_made() -> None:
    with pytest.raises(ArgumentError, match="damping"):
        inverse(operator(2, definite=True), damping=-1.0)


def test_factors_are_any_real_numbers_and_refused_in_one_line_else() -> None:
    a = operator(0)
    torch.testing.assert_close((np.float32(0.5) * a).dense(), 0.5 * matrix(0))
    with pytest.raises(ArgumentError, match="finite number as factor, got Tensor"):
        _ = a * torch.ones(SIZE)  # type: ignore[operator]


def uneven() -> tuple[DenseOperator, Tensor]:
    """A definite matrix whose rows differ by up to 1e4 in size, and its diagonal."""
    sizes = torch.logspace(0, 4, SIZE, dtype=torch.float64).sqrt()
    dense = sizes[:, None] * (matrix(2, definite=True) + torch.eye(SIZE)) * sizes
    return DenseOperator(dense, symmetric=True, positive_semidefinite=True), dense.diagonal()


@pytest.mark.parametrize("kind", ["diagonal", "operator"])
def test_a_preconditioner_saves_products_and_changes_no_solution(kind: str) -> None:
    a, diagonal = uneven()
    damping, right = 0.5, torch.randn(SIZE, 2, generator=torch.Generator().manual_seed(1)).double()
    damped = a.dense() + damping * torch.eye(SIZE)
    near: Any = 1 / (diagonal + damping)
    if kind == "operator":
        rough = torch.linalg.inv(damped + 0.1 * matrix(3, definite=True))
        near = DenseOperator(rough, symmetric=True)
    given: dict[str, Any] = {"damping": damping, "tolerance": 1e-9}
    found = solve(a, right, preconditioner=near, **given)
    assert found.converged
    own = (right - damped @ found.values).norm(dim=0) / right.norm(dim=0)
    torch.testing.assert_close(found.residuals, own, rtol=1e-2, atol=1e-12)
    assert float(own.max()) <= 1e-9
    torch.testing.assert_close(found.values, torch.linalg.solve(damped, right), rtol=1e-6, atol=0)
    assert found.products < 0.75 * solve(a, right, **given).products
    product = hb.inverse(a, preconditioner=near, **given) @ right
    torch.testing.assert_close(product, found.values)


def test_negative_curvature_is_met_with_a_preconditioner_too() -> None:
    near = torch.linspace(1, 2, SIZE).double()
    with pytest.raises(RunError, match=r"negative curvature.*more damping"):
        _ = inverse(operator(0), damping=0.01, preconditioner=near) @ torch.ones(SIZE).double()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("near", "words"),
    [
        (
            torch.ones(SIZE + 1),
            r"expected an operator of shape \(12, 12\) or the entries \(12,\) of",
        ),
        (torch.eye(SIZE), "of a diagonal, finite and above 0"),
        (DenseOperator(torch.eye(SIZE + 1)), "expected an operator of shape"),
        (-torch.ones(SIZE), "of a diagonal, finite and above 0"),
        (torch.full((SIZE,), torch.inf), "of a diagonal, finite and above 0"),
        (identity_like(operator(0)) * -1.0, "expected a positive definite one"),
    ],
)
def test_a_preconditioner_that_is_none_is_refused(near: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        _ = inverse(operator(2, definite=True), preconditioner=near) @ torch.ones(SIZE).double()


def test_the_adjoint_of_a_rectangle_multiplies_with_its_transpose() -> None:
    rectangle = torch.randn(20, 50, dtype=torch.float64)
    columns = torch.randn(20, 3, dtype=torch.float64)
    torch.testing.assert_close(DenseOperator(rectangle).adjoint() @ columns, rectangle.T @ columns)
