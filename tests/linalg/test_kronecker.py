"""Kronecker sums against the plain definition, entry by entry."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from hessblocks.linalg.kronecker.gram import inner_product
from hessblocks.linalg.kronecker.matrices import TokenMatrices
from hessblocks.linalg.kronecker.sum import BlockGrid, KroneckerSum
from hessblocks.linalg.kronecker.terms import KroneckerTerm, distinct
from hessblocks.linalg.operators.bounded import BoundedCache

ROWS, COLUMNS = (3, 3), (3, 3)
ORDERS = [(row, column) for row in (False, True) for column in (False, True)]


@dataclass(frozen=True)
class Kind:
    """How a term holds its matrices."""

    name: str
    tokens: int = 7
    rank: int | None = None
    shared: bool = False


KINDS = (
    Kind("whole"),
    Kind("thin", rank=1),
    Kind("thin, rank 2", rank=2),
    Kind("shared", shared=True),
    Kind("shared thin", rank=2, shared=True),
    Kind("one token", tokens=1),
)


def make(
    kind: Kind, orders: tuple[bool, bool], dtype: torch.dtype = torch.float64
) -> KroneckerTerm:
    count = 1 if kind.shared else kind.tokens
    left = None if kind.rank is None else torch.randn(count, kind.rank, 3, dtype=dtype)
    return KroneckerTerm(
        row=torch.randn(kind.tokens, 3, dtype=dtype),
        column=torch.randn(kind.tokens, 3, dtype=dtype),
        matrices=TokenMatrices(right=torch.randn(count, kind.rank or 3, 3, dtype=dtype), left=left),
        row_swapped=orders[0],
        column_swapped=orders[1],
    )


def definition(term: KroneckerTerm) -> Tensor:
    whole = term.matrices.whole().expand(term.tokens, -1, -1)
    rows = "rp" if term.row_swapped else "pr"
    columns = "wt" if term.column_swapped else "tw"
    entries = torch.einsum(f"np,nt,nrw->{rows}{columns}", term.row, term.column, whole)
    return entries.reshape(math.prod(term.row_shape), math.prod(term.column_shape))


def operator(*terms: KroneckerTerm, **options: object) -> KroneckerSum:
    return KroneckerSum(
        terms,
        row_shape=terms[0].row_shape,
        column_shape=terms[0].column_shape,
        like=terms[0].row,
        **options,
    )


def sums() -> list[tuple[KroneckerTerm, ...]]:
    """Each kind in each order, and pairs of all orders."""
    torch.manual_seed(1)
    single = [(make(kind, order),) for kind in KINDS for order in ORDERS]
    pairs = [
        (make(KINDS[i % len(KINDS)], a), make(KINDS[(i + j) % len(KINDS)], b))
        for i, a in enumerate(ORDERS)
        for j, b in enumerate(ORDERS)
    ]
    return single + pairs


@pytest.mark.parametrize("memory_limit", [1, 1 << 29], ids=["one token a chunk", "one chunk"])
@pytest.mark.parametrize("terms", sums())
def test_every_method_agrees_with_the_definition(
    terms: tuple[KroneckerTerm, ...], memory_limit: int
) -> None:
    expected = torch.stack([definition(term) for term in terms]).sum(0)
    found = operator(*terms, memory_limit=memory_limit)
    columns = torch.randn(9, 4, dtype=torch.float64)
    torch.testing.assert_close(found.dense(), expected)
    torch.testing.assert_close(found @ columns, expected @ columns)
    torch.testing.assert_close(found @ columns[:, 0], expected @ columns[:, 0])
    torch.testing.assert_close(found.adjoint() @ columns, expected.T @ columns)
    torch.testing.assert_close(found.adjoint().dense(), expected.T)
    torch.testing.assert_close(found.diagonal(), expected.diagonal())
    assert found.trace() == pytest.approx(float(expected.trace()))
    squares = found._unit**2 * found._gram_square(), found._unit**2 * found._assembled_square()
    for square in (*squares, found.frobenius_norm() ** 2):
        assert square == pytest.approx(float(expected.square().sum()), rel=1e-12)


@pytest.mark.parametrize("orders", ORDERS)
def test_unequal_lengths(orders: tuple[bool, bool]) -> None:
    term = KroneckerTerm(
        row=torch.randn(6, 2, dtype=torch.float64),
        column=torch.randn(6, 3, dtype=torch.float64),
        matrices=TokenMatrices(right=torch.randn(6, 4, 5, dtype=torch.float64)),
        row_swapped=orders[0],
        column_swapped=orders[1],
    )
    found = operator(term)
    columns = torch.randn(15, 2, dtype=torch.float64)
    assert found.shape == (8, 15)
    torch.testing.assert_close(found.dense(), definition(term))
    torch.testing.assert_close(found @ columns, definition(term) @ columns)
    squares = found._unit**2 * found._gram_square(), found._unit**2 * found._assembled_square()
    assert squares[0] == pytest.approx(squares[1], rel=1e-12)


def test_terms_that_share_their_vectors_become_one() -> None:
    first = make(KINDS[0], (False, True))
    second = replace(first, matrices=TokenMatrices(right=torch.randn_like(first.matrices.right)))
    found = operator(first, second)
    assert len(found.terms) == 1
    torch.testing.assert_close(found.dense(), definition(first) + definition(second))


@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.name)
@pytest.mark.parametrize("same", [True, False])
def test_tokens_with_equal_vectors_are_added_up(kind: Kind, same: bool) -> None:
    term = make(replace(kind, tokens=100), (False, True))
    which = torch.randint(9, (100,))
    row = torch.randn(9, 3, dtype=torch.float64)[which]
    column = row if same else torch.randn(2, 3, dtype=torch.float64)[which % 2]
    term = replace(term, row=row, column=column)
    found = distinct(term)
    assert found.tokens == 9
    torch.testing.assert_close(definition(found), definition(term))
    assert operator(term).frobenius_norm() == pytest.approx(float(definition(term).norm()))
    assert distinct(make(replace(kind, tokens=100), (False, True))).tokens == 100


def test_a_shared_matrix_leaves_no_sum_over_tokens() -> None:
    assert (
        operator(make(Kind("shared", tokens=50, shared=True), (False, False))).terms[0].tokens == 3
    )


@pytest.mark.parametrize("rank", [None, 1, 2])
@pytest.mark.parametrize("shared_left", [False, True])
def test_vectors_that_are_numbers_leave_no_sum_over_tokens(
    rank: int | None, shared_left: bool
) -> None:
    left = None if rank is None else torch.randn(1 if shared_left else 7, rank, 3).double()
    term = KroneckerTerm(
        row=torch.randn(7, 1).double(),
        column=torch.randn(7, 1).double(),
        matrices=TokenMatrices(right=torch.randn(7, rank or 3, 4).double(), left=left),
        row_swapped=True,
    )
    found = operator(term)
    assert found.terms[0].tokens == 1
    torch.testing.assert_close(found.dense(), definition(term))
    wide = replace(
        term, matrices=TokenMatrices(left=torch.ones(7, 1, 40), right=torch.ones(7, 1, 40))
    )
    assert wide.collapsed() is wide  # thin products hold fewer numbers


def test_no_terms_are_the_zero_operator() -> None:
    zero = KroneckerSum([], row_shape=(2, 3), column_shape=(1, 4), like=torch.zeros(0))
    assert zero.frobenius_norm() == 0
    assert not zero.dense().any()
    assert not (zero @ torch.ones(4)).any()
    assert zero.adjoint().shape == (4, 6)


@pytest.mark.parametrize("size", [1e-12, 1e9])
@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.name)
def test_the_norm_neither_underflows_nor_overflows_in_float32(kind: Kind, size: float) -> None:
    term = make(kind, (False, False), torch.float32)
    scaled = replace(term, row=term.row * size, column=term.column * size)
    expected = float(definition(term).double().norm()) * size**2
    found = operator(scaled)
    assert found._unit * found._gram_square() ** 0.5 == pytest.approx(expected, rel=1e-5)


def test_the_inner_product_of_different_terms() -> None:
    for orders in ORDERS:
        first, second = make(KINDS[0], (False, False)), make(KINDS[2], orders)
        expected = float((definition(first) * definition(second)).sum())
        assert inner_product(first, second, memory_limit=1 << 20) == pytest.approx(expected)


def grid(*, symmetric: bool) -> tuple[BlockGrid, Tensor]:
    """Two by two blocks, rows of 9 and 8, and the assembled matrix."""
    corner = make(KINDS[0], (False, False))
    side = KroneckerTerm(
        row=torch.randn(5, 3, dtype=torch.float64),
        column=torch.randn(5, 2, dtype=torch.float64),
        matrices=TokenMatrices(right=torch.randn(5, 3, 4, dtype=torch.float64)),
    )
    vector = torch.randn(6, 2, dtype=torch.float64)
    square = torch.randn(6, 4, 4, dtype=torch.float64)
    other = KroneckerTerm(
        row=vector, column=vector, matrices=TokenMatrices(right=square + square.mT)
    )
    half = operator(corner)
    blocks = {
        (0, 0): operator(corner, *half.adjoint().terms, symmetric=True),
        (0, 1): operator(side),
        (1, 0): operator(side).adjoint(),
        (1, 1): operator(other, symmetric=True),
    }
    built = BlockGrid(
        lambda i, j: blocks[i, j],
        row_lengths=(9, 8),
        column_lengths=(9, 8),
        like=vector,
        symmetric=symmetric,
    )
    rows = [torch.cat([blocks[i, j].dense() for j in range(2)], dim=1) for i in range(2)]
    return built, torch.cat(rows)


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_grid_agrees_with_its_assembled_matrix(symmetric: bool) -> None:
    found, expected = grid(symmetric=symmetric)
    columns = torch.randn(17, 3, dtype=torch.float64)
    torch.testing.assert_close(found.dense(), expected)
    torch.testing.assert_close(found @ columns, expected @ columns)
    torch.testing.assert_close(found.adjoint() @ columns, expected.T @ columns)
    torch.testing.assert_close(found.diagonal(), expected.diagonal())
    assert found.trace() == pytest.approx(float(expected.trace()))
    assert found.frobenius_norm() == pytest.approx(float(expected.norm()), rel=1e-12)


def test_a_bounded_cache_forgets_what_does_not_fit() -> None:
    made = []

    def maker(name: str, length: int):
        def make_one() -> Tensor:
            made.append(name)
            return torch.zeros(length, dtype=torch.uint8)

        return make_one

    cache: BoundedCache[Tensor] = BoundedCache(10)
    for name, length in (("a", 6), ("b", 4), ("a", 6), ("c", 5), ("a", 6), ("b", 4), ("d", 11)):
        assert len(cache.get(name, maker(name, length))) == length
    assert made == ["a", "b", "c", "a", "b", "d"]
