"""A matrix times a power of 4 has the numbers times it, digit for digit, however small or large it
is then."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import hessblocks as hb
from hessblocks.curvature.exact.unembedding import SoftmaxBlock
from hessblocks.curvature.sampled.grams import _inner_products
from hessblocks.errors import ArgumentError, HessblocksError
from hessblocks.linalg import BlockGrid, DenseOperator, KroneckerSum, norms_from_pairs, solve
from hessblocks.linalg.operators import column_lengths, lengths, unit_of
from tests.linalg.matrices import MATRICES, SIZE, with_eigenvalues
from tests.linalg.test_kronecker import KINDS, make, operator

SCALES = [
    pytest.param(torch.float64, 4.0**-280, marks=pytest.mark.slow),  # 1e-169
    (torch.float64, 4.0**-470),  # 1e-283
    (torch.float64, 4.0**250),  # 1e150
    pytest.param(torch.float32, 4.0**-37, marks=pytest.mark.slow),  # 5e-23
    (torch.float32, 4.0**-46),  # 2e-28
    pytest.param(torch.float32, 4.0**28, marks=pytest.mark.slow),  # 7e16
]
scaled = pytest.mark.parametrize(("dtype", "scale"), SCALES, ids=str)
LINEAR: dict[str, Callable[[DenseOperator], list[Any]]] = {
    "norm": lambda op: shown(hb.frobenius_norm(op)),
    "norm of few columns": lambda op: shown(hb.frobenius_norm(op, probes=SIZE)),
    "hutchinson": lambda op: shown(hb.trace(op)),
    "xtrace": lambda op: shown(hb.trace(op, method="xtrace")),
    "diagonal": lambda op: list(vars(hb.diagonal(op)).values())[:2],
    "eigenvalues, assembled": lambda op: list(vars(hb.extreme_eigenvalues(op, 2)).values())[:2],
    "eigenvalues": lambda op: list(vars(hb.extreme_eigenvalues(op)).values())[:2],
    "nodes": lambda op: [hb.spectral_density(op, steps=12).nodes],
    "a mean of eigenvalues": lambda op: shown(
        hb.spectral_density(op, steps=12).average(lambda values: values)
    ),
    "a broadening": lambda op: [hb.spectral_density(op, steps=12).broadening],
}  # fmt: skip
"""Numbers in the unit of the matrix."""


def shown(estimate: hb.Estimate) -> list[float]:
    return [estimate.value, estimate.standard_error]


def flat(found: list[Any]) -> Tensor:
    return torch.cat([torch.as_tensor(one, dtype=torch.float64).flatten() for one in found])


@pytest.mark.filterwarnings("ignore:frobenius_norm. relative standard error")
@pytest.mark.parametrize("name", LINEAR)
@scaled
def test_numbers_go_with_the_scale(name: str, dtype: torch.dtype, scale: float) -> None:
    matrix = MATRICES["flat"].to(dtype)
    expected = flat(LINEAR[name](DenseOperator(matrix, symmetric=True)))
    found = flat(LINEAR[name](DenseOperator(matrix * scale, symmetric=True)))
    assert expected.abs().max() > 0
    if "trace" in name:  # the deflated rest of a sum is rounding
        torch.testing.assert_close(found / scale, expected, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(found / scale, expected)


@scaled
def test_numbers_without_unit_stay(dtype: torch.dtype, scale: float) -> None:
    matrix = MATRICES["flat"].to(dtype)
    ops = [DenseOperator(matrix * one, symmetric=True) for one in (1.0, scale)]
    densities = [hb.spectral_density(op, steps=12) for op in ops]
    assert torch.allclose(densities[1].density * scale, densities[0].density, rtol=1e-9)
    assert torch.allclose(
        densities[1].standard_error * scale, densities[0].standard_error, rtol=1e-9
    )
    assert torch.equal(densities[0].weights, densities[1].weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of moments
        spread = [float(str(one).split("deviation ")[1].split(" ")[0]) for one in densities]
    assert spread[1] / scale == pytest.approx(spread[0], rel=0.01)


@pytest.mark.parametrize("scale", [1e-200, 1e-170, 4.0**-37, 1e150])
def test_conjugate_gradients_look_at_the_size_of_b_alone(scale: float) -> None:
    matrix, right = MATRICES["flat"], torch.randn(SIZE, 2, dtype=torch.float64)
    expected = torch.linalg.solve(matrix, right)
    for a, b in ((1.0, scale), (scale, 1.0), (scale, scale)):
        found = solve(DenseOperator(matrix * a, symmetric=True), right * b, tolerance=1e-10)
        assert found.converged
        assert torch.allclose(found.values / b * a, expected, rtol=1e-8)


@pytest.mark.parametrize("scale", [4.0**-280, 4.0**-200, 4.0**240])
def test_closed_forms_go_with_the_scale(scale: float) -> None:
    """Of a sum, of a grid of sums, and of the last layer of a softmax."""

    def grid(one: KroneckerSum) -> BlockGrid:
        like = torch.empty(0, dtype=torch.float64)
        sizes = [one.shape[0]] * 2
        return BlockGrid(lambda i, j: one, row_lengths=sizes, column_lengths=sizes, like=like)

    for kind in KINDS[:3]:
        term = make(kind, (False, False))
        once, again = operator(term), operator(replace(term, row=term.row * scale))
        assert again.frobenius_norm() / scale == pytest.approx(once.frobenius_norm(), rel=1e-13)
        assert again._unit * again._assembled_square() ** 0.5 == pytest.approx(
            again.frobenius_norm()
        )
        assert grid(again).frobenius_norm() == pytest.approx(2 * again.frobenius_norm(), rel=1e-13)
    p, h = torch.rand(5, 3).double().softmax(-1), torch.randn(5, 4).double()
    blocks = [
        SoftmaxBlock(h * one**0.5, p, torch.ones(5).double(), 1 << 20) for one in (1.0, scale)
    ]
    norms = [block.frobenius_norm() for block in blocks]
    assert norms[0] > 0
    assert norms[1] / scale == pytest.approx(norms[0], rel=1e-13)


@pytest.mark.parametrize("scale", [4.0**-200, 4.0**-100, 4.0**100])
def test_norms_from_pairs_go_with_the_scale(scale: float) -> None:
    """Also where one group's scale is that far from another's."""
    samples = torch.randn(3, 1, 12, 5, dtype=torch.float64)
    grams = samples @ samples.mT
    expected, found = norms_from_pairs(grams), norms_from_pairs(grams * scale)
    for name in ("values", "standard_errors"):
        assert (getattr(expected, name) != 0).all()
        torch.testing.assert_close(getattr(found, name) / scale, getattr(expected, name))
    assert shown(found.off_diagonal_share) == pytest.approx(shown(expected.off_diagonal_share))
    uneven = grams.clone()
    uneven[1] *= scale
    far = norms_from_pairs(uneven)
    torch.testing.assert_close(far.values[0, 0], expected.values[0, 0])
    torch.testing.assert_close(far.values[1, 1] / scale, expected.values[1, 1])
    torch.testing.assert_close(far.standard_errors[1, 1] / scale, expected.standard_errors[1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1e-19, 1.0, 1e25])
def test_inner_products_of_samples_leave_no_range(dtype: torch.dtype, size: float) -> None:
    samples = (torch.randn(8, 50).double() * size).to(dtype)
    found = _inner_products(samples, [20, 30])
    for one, piece in zip(found, samples.double().split([20, 30], dim=1), strict=True):
        torch.testing.assert_close(one, piece @ piece.T, rtol=1e-5, atol=1e-5 * size**2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_unit_is_a_power_of_four_and_its_inverse_is_finite(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    for size in (limits.smallest_normal * limits.eps, limits.tiny, 0.3, 1.0, 7.0, limits.max):
        values = torch.tensor([0.0, -size], dtype=dtype)
        unit = unit_of(values)
        assert math.frexp(unit)[0] == 0.5
        assert math.frexp(unit)[1] % 2 == 1
        assert torch.isfinite(
            1 / torch.tensor(unit, dtype=torch.promote_types(dtype, torch.float32))
        )
        assert float((values.double() / unit).abs().max()) <= (2 if size < limits.max else 16)
    for nothing in ([], [0.0], [float("inf")], [float("nan"), 1.0]):
        assert unit_of(torch.tensor(nothing)) == 1.0


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1.0, 1e200])
def test_lengths_of_rows_and_columns_are_those_of_hypot(size: float) -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [5.0, 12.0]], dtype=torch.float64) * size
    torch.testing.assert_close(lengths(rows) / size, torch.tensor([5.0, 0.0, 13.0]).double())
    torch.testing.assert_close(column_lengths(rows.T) / size, torch.tensor([5.0, 0, 13]).double())


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e-40), (torch.float64, 1e-318)])
def test_products_that_have_lost_digits_are_reported(dtype: torch.dtype, scale: float) -> None:
    matrix = (MATRICES["flat"] * scale).to(dtype)
    for look in (hb.trace, hb.frobenius_norm, hb.diagonal, hb.extreme_eigenvalues):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            look(DenseOperator(matrix, symmetric=True))
        assert any("digits are lost; scale the loss up" in str(one.message) for one in said), look


@pytest.mark.parametrize("size", [1e-120, 1e120])
def test_the_spread_of_a_spectrum_is_printed_though_its_square_leaves_float64(size: float) -> None:
    found = str(
        hb.spectral_density(DenseOperator(MATRICES["flat"] * size, symmetric=True), steps=12)
    )
    spread = float(found.partition("standard deviation ")[2].split()[0])
    exact = float(torch.linalg.eigvalsh(MATRICES["flat"]).std(correction=0))
    assert spread == pytest.approx(size * exact, rel=0.2)


NEGATIVE = torch.cat([torch.tensor([-5.0]), torch.linspace(0.5, 4, SIZE - 1)]).double()
LANCZOS: dict[str, Callable[[DenseOperator], object]] = {
    "largest": lambda op: hb.extreme_eigenvalues(op, 1, "largest"),
    "smallest": lambda op: hb.extreme_eigenvalues(op, 1, "smallest"),
    "density": lambda op: hb.spectral_density(op, steps=20),
    "density of few rows": lambda op: hb.spectral_density(op, steps=SIZE),
}


@pytest.mark.parametrize("scale", [1.0, 1e-170, 1e100])
@pytest.mark.parametrize("name", LANCZOS)
def test_a_negative_value_of_a_matrix_declared_semidefinite_is_refused(
    name: str, scale: float
) -> None:
    matrix = with_eigenvalues(NEGATIVE * scale)
    with pytest.raises(
        ArgumentError, match=r"declared positive semi-definite, but Lanczos met .* = -\d"
    ):
        LANCZOS[name](DenseOperator(matrix, positive_semidefinite=True))
    LANCZOS[name](DenseOperator(matrix, symmetric=True))


@pytest.mark.filterwarnings("ignore:extreme_eigenvalues. not converged")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [one for one in LANCZOS if one != "condition"])
def test_rounding_below_zero_is_not_a_negative_value(name: str, dtype: torch.dtype) -> None:
    """A Gram matrix of rank 5, whose zeros are rounding of either sign."""
    factor = torch.randn(SIZE, 5).to(dtype)
    LANCZOS[name](DenseOperator(factor @ factor.T, positive_semidefinite=True))


def pair(*entries: float) -> Tensor:
    """Zeros but for one row, so that a few vectors of signs agree on what is not there."""
    matrix = torch.zeros(40, 40, dtype=torch.float64)
    matrix[3, : len(entries)] = torch.tensor(entries, dtype=torch.float64)
    return matrix


MISSED = {
    "two alike": pair(1, 1),
    "opposite": pair(1, -1),
    "four": pair(1, 1, -1, 1),
    "small": pair(1e-200, 1e-200),
    "two rows": pair(1, 1) + pair(1, 1).T,
}


@pytest.mark.parametrize("name", MISSED)
def test_a_zero_that_signs_give_by_chance_is_not_a_zero(name: str) -> None:
    """Of 60 seeds with 4 probes about 4 give nothing but zeros."""
    matrix, zeros = MISSED[name], 0
    truth = float((matrix / matrix.abs().max()).norm() * matrix.abs().max())
    for seed in range(60):
        found = hb.frobenius_norm(DenseOperator(matrix), probes=4, seed=seed)
        zeros += bool(found.value == 0)
        assert 0.02 < found.value / truth < 5, seed
        assert found.method == "estimate"
    assert zeros == 0


def test_a_trace_on_which_signs_agree_by_chance_has_an_error() -> None:
    """The truth is 0, and two probes give 2 ± 0, −2 ± 0 or 0 ± 0 in half of all cases."""
    matrix = torch.zeros(40, 40, dtype=torch.float64)
    matrix[0, 1] = matrix[1, 0] = 1.0
    op = DenseOperator(matrix, symmetric=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(30):
            found = hb.trace(op, probes=4, seed=seed)
            assert found.standard_error > 0
            assert bool((hb.diagonal(op, probes=4, seed=seed).standard_errors > 0).any())


@pytest.mark.parametrize("name", ["zero", "identity", "uneven", "thirds"])
def test_zero_and_diagonal_matrices_keep_their_error_of_zero(name: str) -> None:
    matrix = {
        "zero": torch.zeros(40, 40),
        "identity": torch.eye(40),
        "uneven": torch.diag(torch.logspace(-20, 3, 40)),
        "thirds": torch.eye(40) / 3,
    }[name].double()
    for probes in (5, 7, 16):
        found = hb.trace(DenseOperator(matrix, symmetric=True), probes=probes)
        assert found.value == pytest.approx(float(matrix.trace()))
        assert found.standard_error <= 1e-15 * found.value
        norm = hb.frobenius_norm(DenseOperator(matrix), probes=probes)
        assert norm.value == pytest.approx(float(matrix.norm()))
        assert norm.standard_error <= 1e-7 * norm.value


def test_overflow_is_still_refused() -> None:
    with pytest.raises(HessblocksError, match="scale the loss down"):
        hb.trace(DenseOperator((MATRICES["flat"] * 1e25).float(), symmetric=True))
