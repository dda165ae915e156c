"""Laws that the closed form keeps on every case, autodiff being the first witness."""

from functools import cache
from typing import Any

import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from hessblocks.conventions import PARTS
from hessblocks.linalg.spectra.lanczos import extreme_eigenvalues
from hessblocks.theory.arguments import attention_hessian
from hessblocks.theory.hessian import AttentionHessian
from tests.theory.autodiff import BOUNDS, compare, reference_hessian
from tests.theory.cases import CASES, Case, arguments
from tests.theory.kinds import daily

MORE = (
    Case(name="values wider than input", width=2, value=5, loss="factor"),
    Case(name="heads, one token", heads=3, value=2, out=3, tokens=1, gains=True),
    Case(name="heads, random mask", heads=3, value=2, out=3, mask="random by sequence", tokens=5),
    Case(name="heads, one-hot", heads=3, value=2, out=3, special="one-hot"),
    Case(name="heads, identical tokens", heads=3, value=2, special="identical tokens"),
    Case(name="heads, wide", heads=3, head=1, value=2, out=2, width=6, loss="factor"),
    Case(name="narrow head, dense loss", width=5, head=1, value=1, loss="matrix", mask="causal"),
)
cases = pytest.mark.parametrize("case", daily(CASES + MORE), ids=lambda case: case.name)
EXACT = next(iter(BOUNDS))
"""Every case is compared in it every day, and the cases of `TIGHT` in the other."""
TIGHT = ("plain", "low-rank curvature", "one matrix, heads", "shaped", "rotary", "normed queries")
"""A memory limit makes many small products, whose number grows with the heads."""
BOTH = [
    pytest.param(
        *(case, dtype),
        id=f"{case.name}-{dtype}",
        marks=[] if dtype == EXACT or case.name in TIGHT else [pytest.mark.slow],
    )
    for dtype in BOUNDS
    for case in CASES + MORE
]
parts = pytest.mark.parametrize("part", PARTS)


@cache
def closed(case: Case, **changes: Any) -> AttentionHessian:
    return attention_hessian(**arguments(case) | changes)


@cache
def dense(case: Case) -> dict[str, Tensor]:
    return {part: closed(case).dense(part) for part in PARTS}


@cache
def reference(case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    return reference_hessian(arguments(case, dtype=dtype))


def size(case: Case) -> float:
    """What rounding is measured against: the largest of the parts."""
    return max(float(matrix.norm()) for matrix in dense(case).values())


@pytest.mark.parametrize(("case", "dtype"), BOTH)
def test_every_block_equals_autodiff(case: Case, dtype: torch.dtype) -> None:
    found = attention_hessian(**arguments(case, dtype=dtype))
    checks = compare(case.name, found, reference(case, dtype), BOUNDS[dtype])
    assert checks
    assert not [check for check in checks if not check.passed]


@cases
def test_the_whole_matrix_equals_autodiff(case: Case) -> None:
    expected = reference(case, EXACT)
    for part in PARTS:
        assert (dense(case)[part] - expected[part]).norm() <= 1e-12 * size(case)


@parts
@cases
def test_symmetric(case: Case, part: str) -> None:
    matrix = dense(case)[part]
    assert (matrix - matrix.T).norm() <= 1e-14 * size(case)


@cases
def test_the_parts_add_up(case: Case) -> None:
    found = dense(case)
    assert (found["outer"] + found["functional"] - found["full"]).norm() <= 1e-14 * size(case)


@cases
def test_the_outer_part_is_positive_semidefinite_where_the_loss_is_convex(case: Case) -> None:
    convex = case.loss != "matrix"
    assert closed(case).whole("outer").positive_semidefinite == convex
    for group in closed(case).groups:
        assert closed(case).block(group, group, "outer").positive_semidefinite == convex
    assert not closed(case).whole("full").positive_semidefinite
    if convex:
        assert torch.linalg.eigvalsh(dense(case)["outer"])[0] >= -1e-13 * size(case)


@parts
@cases
def test_products_and_summaries_need_no_assembly(case: Case, part: str) -> None:
    whole, matrix = closed(case).whole(part), dense(case)[part]
    columns = torch.randn(matrix.shape[0], 3, dtype=matrix.dtype)
    assert (whole @ columns - matrix @ columns).norm() <= 1e-12 * size(case) * columns.norm()
    assert whole.trace() == pytest.approx(float(matrix.trace()), abs=1e-12 * size(case))
    assert (whole.diagonal() - matrix.diagonal()).norm() <= 1e-12 * size(case)
    assert whole.frobenius_norm() == pytest.approx(float(matrix.norm()), abs=1e-12 * size(case))


@cases
def test_norms_of_all_blocks_and_parts(case: Case) -> None:
    norms = closed(case).norms()
    groups = closed(case).groups
    assert len(norms) == 3 * len(groups) ** 2
    for (row, column, part), norm in norms.items():
        block = closed(case).block(row, column, part)
        assert norm == pytest.approx(float(block.dense().norm()), rel=1e-12, abs=1e-13 * size(case))


@pytest.mark.parametrize("case", daily(CASES + MORE, TIGHT), ids=lambda case: case.name)
def test_a_memory_limit_changes_nothing(case: Case) -> None:
    tight = attention_hessian(**arguments(case), memory_limit=1)
    for (row, column, part), norm in closed(case).norms().items():
        found = tight.block(row, column, part)
        assert found.frobenius_norm() == pytest.approx(norm, rel=1e-10, abs=1e-12 * size(case))
    matrix = dense(case)["full"]
    columns = torch.randn(matrix.shape[0], 2, dtype=matrix.dtype)
    error = tight.whole("full") @ columns - matrix @ columns
    assert error.norm() <= 1e-12 * size(case) * columns.norm()


@pytest.mark.parametrize("part", ["outer", "full"])
def test_extreme_eigenvalues_by_a_foreign_solver(part: str) -> None:
    case = next(c for c in CASES if c.name == "shaped")
    values = torch.linalg.eigvalsh(dense(case)[part])
    found = eigsh(closed(case).whole(part).to_scipy(), k=1, return_eigenvectors=False, which="LA")
    assert found[0] == pytest.approx(float(values[-1]), rel=1e-10)


@pytest.mark.parametrize("name", ["three heads, projection", "simplified block"])
def test_blocks_of_single_heads_are_the_places_of_the_whole_block(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    whole = closed(case).block("query", "key", "full").dense()
    length = case.width * case.head
    for i in range(case.heads):
        for j in range(case.heads):
            found = closed(case).block("query", "key", "full", head=(i, j)).dense()
            place = whole[i * length : (i + 1) * length, j * length : (j + 1) * length]
            torch.testing.assert_close(found, place, rtol=1e-12, atol=0)
    assert not closed(case).block("query", "key", "functional", head=(0, 1)).frobenius_norm()


def test_one_sequence_needs_no_batch_axis() -> None:
    made = arguments(Case(name="", batch=1, mask="causal"))
    flat = made | {"x": made["x"][0], "target": made["target"][0], "w_query": made["w_query"][0]}
    torch.testing.assert_close(attention_hessian(**flat).dense(), attention_hessian(**made).dense())


def test_tokens_with_a_gradient_or_a_curvature_alone_are_kept() -> None:
    made = arguments(Case(name="", batch=1, loss="factor", value=4, mask="causal"))
    made["gradient"][:, :3] = 0
    made["curvature_factor"][:, 2:] = 0
    expected = reference_hessian(made)
    for part in PARTS:
        found = attention_hessian(**made).dense(part)
        torch.testing.assert_close(found, expected[part], rtol=1e-12, atol=1e-12)


def test_no_loss_at_all_is_the_zero_hessian() -> None:
    made = arguments(Case(name="", loss="factor", gains=True))
    zero = attention_hessian(**made | {n: made[n] * 0 for n in ("gradient", "curvature_factor")})
    assert not zero.dense().any()
    assert set(zero.norms().values()) == {0.0}


def test_our_own_lanczos_takes_the_operators() -> None:
    case = next(c for c in CASES if c.name == "three heads, projection")
    values = torch.linalg.eigvalsh(dense(case)["full"])
    found = extreme_eigenvalues(closed(case).whole("full"), 1)
    assert found.converged
    torch.testing.assert_close(found.values, values[[-1, 0]], rtol=1e-8, atol=0)
