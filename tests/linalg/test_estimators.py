"""Norm, trace and diagonal: exact cases, other libraries' numbers, edges and refusals."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg.estimators.estimates import Estimate
from hessblocks.linalg.estimators.hutchinson import diagonal, frobenius_norm, norm_from_squares
from hessblocks.linalg.estimators.probes import ARRAYS, Probes
from hessblocks.linalg.estimators.trace import trace
from hessblocks.linalg.operators.operator import DenseOperator, LinearOperator
from hessblocks.linalg.spectra import spectral_density
from tests.linalg.matrices import MATRICES, SIZE, operator

METHODS = ["hutchinson", "xtrace"]
CALLS: dict[str, Callable[..., Any]] = {
    "frobenius_norm": frobenius_norm,
    "diagonal": diagonal,
    **{
        name: lambda op, probes=48, seed=0, _name=name, **rest: trace(
            op, probes, seed, method=_name, **rest
        )
        for name in METHODS
    },
}


class Blocks(DenseOperator):
    """Notes the width of each block of vectors that it is multiplied with."""

    def __init__(self, matrix: Tensor, *, symmetric: bool) -> None:
        super().__init__(matrix, symmetric=symmetric)
        self.widths: list[int] = []

    def _matmat(self, columns: Tensor) -> Tensor:
        self.widths.append(columns.shape[1])
        return super()._matmat(columns)


def numbers(result: Any) -> Tensor:
    """Value and error of any result, in one vector."""
    if hasattr(result, "values"):
        return torch.cat([result.values, result.standard_errors]).double()
    return torch.tensor([result.value, result.standard_error], dtype=torch.float64)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("vectors", [0, 1, 5, 1000])
def test_the_memory_decides_how_many_vectors_are_multiplied_at_once(
    call: Callable[..., Any], vectors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = Blocks(MATRICES["pairs"], symmetric=True)
    whole = numbers(call(op))
    op.widths.clear()
    limit = vectors * ARRAYS * SIZE * 8
    monkeypatch.setattr("hessblocks.linalg.estimators.probes.default_limit", lambda device: limit)
    torch.testing.assert_close(numbers(call(op)), whole, rtol=1e-9, atol=1e-11)
    if call is not CALLS["xtrace"]:  # which holds a basis of all its vectors in any case
        assert max(op.widths) <= max(1, vectors)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_seed_repeats_and_another_differs(call: Callable[..., Any]) -> None:
    op = operator("pairs")
    assert torch.equal(numbers(call(op, seed=3)), numbers(call(op, seed=3)))
    assert not torch.equal(numbers(call(op, seed=3)), numbers(call(op, seed=4)))


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"xtrace"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_stays_near_double(name: str, dtype: torch.dtype) -> None:
    """Results are kept in at least float32; bf16 products carry three digits.

    Not for xtrace, whose Gaussian probes differ between dtypes.
    """
    exact = DenseOperator(MATRICES["flat"].to(dtype).double(), symmetric=True)
    rounded = DenseOperator(MATRICES["flat"].to(dtype), symmetric=True)
    bound = 20 * torch.finfo(dtype).eps * float(MATRICES["flat"].norm())
    assert float((numbers(CALLS[name](rounded)) - numbers(CALLS[name](exact))).abs().max()) < bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["decaying", "rank_one", "zero"])
def test_xtrace_in_lower_precision_is_within_its_error_and_rounding(
    name: str, dtype: torch.dtype
) -> None:
    op = operator(name, dtype)
    estimate = trace(op, 40, method="xtrace")
    rounding = 20 * torch.finfo(dtype).eps
    truth = float(op.dense().double().trace())
    assert abs(estimate.value - truth) <= 3 * estimate.standard_error + rounding


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_zero_matrix_is_zero_without_error(call: Callable[..., Any]) -> None:
    result = call(operator("zero"))
    assert result.method == "estimate"
    assert numbers(result).abs().max() == 0


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_few_columns_are_assembled_and_reported_to_be_exact(call: Callable[..., Any]) -> None:
    matrix = torch.randn(7, 7, dtype=torch.float64)
    result = call(DenseOperator(matrix))
    expected = {
        "frobenius_norm": torch.linalg.matrix_norm(matrix)[None],
        "diagonal": matrix.diagonal(),
    }.get(next(name for name in CALLS if CALLS[name] is call), matrix.trace()[None])
    torch.testing.assert_close(numbers(result)[: len(expected)], expected)
    assert result.method == "exact"
    assert numbers(result)[len(expected) :].abs().max() == 0


class ClosedForm(DenseOperator):
    """An operator that knows its own answers, told apart from estimates by their size."""

    def frobenius_norm(self) -> float:
        return 1234.0

    def trace(self) -> Tensor:
        return torch.tensor(1234.0)

    def diagonal(self) -> Tensor:
        return torch.full((60,), 1234.0)

    def _matmat(self, columns: Tensor) -> Tensor:
        raise AssertionError("multiplied although the answer was known")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_closed_form_replaces_the_estimate(call: Callable[..., Any]) -> None:
    result = call(ClosedForm(MATRICES["flat"], symmetric=True))
    assert result.method == "exact"
    assert numbers(result)[0] == 1234


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (1, 60)])
def test_the_norm_of_a_rectangle(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, dtype=torch.float64)
    estimate = frobenius_norm(DenseOperator(matrix), probes=32)
    assert abs(estimate.value - float(matrix.norm())) <= 3 * estimate.standard_error


@pytest.mark.slow
def test_the_norm_is_low_by_no_more_than_the_docstring_says() -> None:
    runs = [frobenius_norm(operator("rank_one"), 16, seed).value for seed in range(2000)]
    mean, error = float(torch.tensor(runs).mean()), float(torch.tensor(runs).std()) / 2000**0.5
    assert -0.016 - 3 * error <= mean - 1 <= 3 * error


def test_the_norm_from_squares_needs_nothing_else() -> None:
    op = operator("flat")
    products = op @ Probes(op, seed=5).draw(16)
    found, direct = norm_from_squares(products.square().sum(0)), frobenius_norm(op, 16, 5)
    # sums of another layout differ in their last digit on some processors
    numbers = [{"value": e.value, "standard_error": e.standard_error} for e in (found, direct)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-12)
    assert replace(found, **numbers[1]) == direct


def test_the_error_bars_are_those_of_the_docstrings() -> None:
    op, matrix = operator("pairs"), MATRICES["pairs"]
    probes = Probes(op, seed=5).draw(16)
    student, pooled = (15 / 13) ** 0.5, (1 + 2 / 16) ** 0.5
    squares = (matrix @ probes).square().sum(0)
    r = float(squares.var() / squares.mean().square()) / 16
    of_norm = 0.5 * r**0.5 * float(squares.mean()) ** 0.5 * (1 + 3 * r) * student
    assert frobenius_norm(op, 16, 5).standard_error == pytest.approx(of_norm)
    variances = (probes * (matrix @ probes)).var(1)
    of_trace = float(2 * variances.sum() / 16) ** 0.5 * pooled
    assert trace(op, 16, 5).standard_error == pytest.approx(of_trace)
    of_entries = (variances / 16).sqrt() * student
    torch.testing.assert_close(diagonal(op, 16, 5).standard_errors, of_entries)


@pytest.mark.parametrize("name", ["decaying", "rank_one", "zero", "block_hollow", "diagonal"])
def test_xtrace_equals_its_definition(name: str) -> None:
    """One QR decomposition for each probe left out, as the paper defines it."""
    op, matrix = operator(name), MATRICES[name]
    probes = Probes(op, seed=0, distribution="gaussian").draw(12)
    parts = []
    for i in range(12):
        others = matrix @ probes[:, torch.arange(12) != i]
        left, singular, _ = torch.linalg.svd(others, full_matrices=False)
        basis = left[:, singular > 1e-12 * singular[0]]
        rest = probes[:, i] - basis @ (basis.T @ probes[:, i])
        scale = (60 - basis.shape[1]) / (rest @ rest)
        parts.append((basis.T @ matrix @ basis).trace() + scale * (rest @ matrix @ rest))
    estimate = trace(op, 24, method="xtrace")
    assert estimate.value == pytest.approx(float(torch.stack(parts).mean()), abs=1e-11)


def test_the_same_probes_give_curvlinops_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    op, matrix = operator("pairs"), MATRICES["pairs"]
    from curvlinops.diagonal import hutchinson as diagonals
    from curvlinops.norm import hutchinson as norms
    from curvlinops.trace import hutchinson as traces

    for module in (diagonals, norms, traces):
        source = Probes(op, seed=0)
        monkeypatch.setattr(module, "random_vector", lambda *_, source=source: source.draw(1)[:, 0])
    squared = float(norms.hutchinson_squared_fro(matrix, 16))
    assert frobenius_norm(op).value == pytest.approx(squared**0.5, rel=1e-12)
    assert trace(op, 16).value == pytest.approx(float(traces.hutchinson_trace(matrix, 16)))
    torch.testing.assert_close(
        diagonal(op).values, diagonals.hutchinson_diag(matrix, 16), rtol=1e-10, atol=1e-12
    )


@pytest.mark.slow
def test_xtrace_agrees_with_curvlinops_over_many_seeds() -> None:
    """Theirs leaves the probes' lengths as they are; both are unbiased."""
    from curvlinops.trace.epperly2024xtrace import xtrace

    ours = torch.tensor([trace(operator("pairs"), 24, s, "xtrace").value for s in range(200)])
    theirs = torch.stack([xtrace(MATRICES["pairs"], 24) for _ in range(200)]).float()
    error = float((ours.var() / 200 + theirs.var() / 200).sqrt())
    assert abs(float(ours.mean() - theirs.mean())) <= 3 * error


class NotFinite(LinearOperator):
    """One product among many is infinite."""

    def __init__(self, size: int = 60) -> None:
        super().__init__(
            (size, size), dtype=torch.float32, device=torch.device("cpu"), symmetric=True
        )

    def _matmat(self, columns: Tensor) -> Tensor:
        return torch.where(torch.arange(columns.shape[1]) == 1, torch.inf, columns)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_products_that_are_not_finite_are_an_error(call: Callable[..., Any]) -> None:
    with pytest.raises(RunError, match="not finite"):
        call(NotFinite())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("size", "dtype"), [(1e200, torch.float64), (1e30, torch.float32)])
def test_products_whose_squares_overflow_are_an_error(
    call: Callable[..., Any], size: float, dtype: torch.dtype
) -> None:
    matrix = torch.randn(200, 200, generator=torch.Generator().manual_seed(0)).double()
    with pytest.raises(RunError, match="whose squares overflow; scale the loss down"):
        call(DenseOperator((size * (matrix + matrix.T)).to(dtype), symmetric=True))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: operator("flat") @ [1.0, 2.0], "expected a tensor, got list"),
        (lambda: operator("flat") @ None, "expected a tensor, got NoneType"),
        (lambda: DenseOperator(torch.ones(3)), "expected \\(M, N\\) floating-point numbers"),
        (lambda: DenseOperator(torch.ones(2, 2).long()), "got \\(2, 2\\) of torch.int64"),
        (lambda: DenseOperator([[1.0]]), "got list"),
        (lambda: DenseOperator(torch.ones(2, 3), symmetric=True), "a symmetric one is square"),
        (lambda: trace(DenseOperator(torch.ones(200, 300)), method="xtrace"), "square"),
        (lambda: frobenius_norm(operator("flat"), probes=3), "at least 4"),
        (lambda: diagonal(operator("flat"), probes=1), "at least 4"),
        (lambda: trace(operator("flat"), 7, method="xtrace"), "at least 8"),
        (lambda: trace(operator("flat"), 16, method="xtrac"), "did you mean|xtrace"),
        (lambda: trace(DenseOperator(torch.ones(2, 3))), "square"),
        (lambda: diagonal(DenseOperator(torch.ones(2, 3))), "square"),
        (lambda: trace(operator("flat"), 9.0), "probes: expected a whole number, got 9.0"),
        (lambda: trace(operator("flat"), "x"), "probes: expected a whole number, got 'x'"),
        (lambda: diagonal(operator("flat"), seed="a"), "seed: expected a whole number, got 'a'"),
        (lambda: frobenius_norm(operator("flat"), seed=2**70), "seed: .*of 64 bits"),
        (lambda: spectral_density(operator("flat"), 2.5), "steps: .*got 2.5"),
    ],
)
def test_wrong_arguments_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_as_many_columns_as_probes_are_exact_and_one_more_is_not(call: Callable[..., Any]) -> None:
    """The count of the call is found by its own answer: the largest size that is exact."""
    exact = [
        call(DenseOperator(torch.ones(size, size))).method == "exact" for size in range(1, 100)
    ]
    most = exact.index(False)
    assert not any(exact[most:])
    spent = call(DenseOperator(torch.randn(99, 99))).probes
    assert spent - 1 <= most <= spent  # xtrace spends an even number of products


def test_a_norm_of_as_many_columns_as_probes_is_exact() -> None:
    matrix = torch.randn(9, 5, dtype=torch.float64)
    assert frobenius_norm(DenseOperator(matrix), probes=5).method == "exact"
    assert frobenius_norm(DenseOperator(matrix), probes=4).method == "estimate"
    assert frobenius_norm(DenseOperator(matrix.T), probes=5).method == "estimate"


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_a_matrix_without_entries_has_norm_and_trace_zero(shape: tuple[int, int]) -> None:
    op = DenseOperator(torch.zeros(shape))
    assert frobenius_norm(op) == Estimate(value=0.0, method="exact")
    if shape[0] == shape[1]:
        assert trace(op) == Estimate(value=0.0, method="exact")


@pytest.mark.parametrize(("error", "shown"), [(123.0, "100"), (0.00123, "0.001"), (2e-7, "2e-07")])
def test_an_error_has_one_digit_and_no_needless_exponent(error: float, shown: str) -> None:
    assert str(Estimate(value=811.0, standard_error=error, probes=2)) == f"811 ± {shown} (2 probes)"
