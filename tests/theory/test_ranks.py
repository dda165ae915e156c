"""The bound of a block's rank beside the rank of the assembled block."""

from itertools import combinations_with_replacement

import pytest
import torch
from torch import Tensor

from hessblocks.conventions import PARTS
from hessblocks.errors import ArgumentError
from hessblocks.theory import attention_hessian, rank_bound
from tests.theory.cases import CASES, Case, arguments
from tests.theory.kinds import DAILY, daily

WIDE = Case(name="wide", width=8, head=3, value=4, tokens=6, batch=1)
TIGHT = (
    ("value", "value", "outer", 6 * 4),
    ("query", "query", "functional", 6 * 3),
    ("query", "key", "outer", 5 * 3),
    ("query", "key", "functional", 5 * 3),
    ("query", "key", "full", 5 * 3),
    ("key", "key", "outer", 5 * 3),
    ("key", "value", "functional", 5 * 3),
    ("value", "value", "functional", 0),
)
"""Of `WIDE`: six tokens span six directions of eight, differences of keys five."""
STEP = 1e-10
"""Share of the largest singular value below which rounding has its say."""


def rank(matrix: Tensor, size: float) -> int:
    values = torch.linalg.svdvals(matrix)
    return int((values > max(STEP * float(values.max()), 1e-13 * size)).sum())


@pytest.mark.parametrize(
    "case", daily([*CASES, WIDE], [*DAILY, "wide"]), ids=lambda case: case.name
)
def test_no_block_has_a_rank_above_its_bound(case: Case) -> None:
    found = attention_hessian(**arguments(case))
    size = float(found.dense().norm())
    heads = (None, 0) if case.heads > 1 else (None,)
    for row, column in combinations_with_replacement(found.groups, 2):
        for part in PARTS:
            for head in heads:
                block = found.block(row, column, part, head)
                bound = rank_bound(found, row, column, part, head)
                assert rank(block.dense(), size) <= bound <= min(block.shape)


@pytest.mark.parametrize(("row", "column", "part", "expected"), TIGHT)
def test_generic_blocks_have_the_rank_of_the_bound(
    row: str, column: str, part: str, expected: int
) -> None:
    found = attention_hessian(**arguments(WIDE))
    assert rank_bound(found, row, column, part) == expected
    assert rank(found.block(row, column, part).dense(), 0.0) == expected


def test_one_curvature_for_all_tokens_gives_the_rank_itself() -> None:
    """H_o of the values is M_1ᵀM_1 ⊗ Λ, and with linear scores H_f of query and key ∂ℓ/∂(W_Q W_Kᵀ)
    ⊗ I."""
    made = arguments(WIDE)
    made["x"][0, 3:] = made["x"][0, :3]
    for scores, pair, part in (
        ("softmax", ("value", "value"), "outer"),
        ("linear", ("query", "key"), "functional"),
    ):
        found = attention_hessian(**{**made, "scores": scores})
        exact = rank(found.block(*pair, part).dense(), 0.0)
        assert 0 < exact == rank_bound(found, *pair, part) < min(found.block(*pair).shape)


def test_a_loss_with_few_directions_bounds_the_outer_part() -> None:
    found = attention_hessian(
        **arguments(Case(name="few", loss="factor", heads=3, value=3, width=9))
    )
    tokens, directions = 8, 2
    for group in found.groups:
        assert rank_bound(found, group, group, "outer") == tokens * directions
        assert rank(found.block(group, group, "outer").dense(), 0.0) == tokens * directions


def test_unknown_names_are_refused() -> None:
    found = attention_hessian(**arguments(WIDE))
    with pytest.raises(ArgumentError, match="part"):
        rank_bound(found, "query", "query", "inner")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="group"):
        rank_bound(found, "query", "projection")
    with pytest.raises(ArgumentError, match="head"):
        rank_bound(found, "query", "query", head=1)
