"""Temperature and its two limits, beside autodiff and beside layers that come near the limits."""

from itertools import combinations_with_replacement
from typing import Any

import pytest
import torch

from hessblocks.errors import ArgumentError
from hessblocks.linalg import slices
from hessblocks.theory import AttentionHessian, ScoreSplit, at_limit, attention_hessian
from tests.theory.autodiff import reference_hessian
from tests.theory.cases import Case, arguments
from tests.theory.plain import permitted_of

CASES = (
    Case(name="plain", loss="matrix"),
    Case(name="heads", heads=3, value=2, out=3, width=4, mask="causal", loss="matrix"),
    Case(name="shaped", gains=True, heads=2, value=2, out=3, mask="random", loss="matrix"),
    Case(name="one matrix", query_key="one-matrix", loss="matrix", mask="causal"),
    Case(name="rotary", head=4, turned=4, tokens=5, mask="causal", loss="factor"),
)
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
SCORES = ("query", "key", "query_key")


def close(found: AttentionHessian, row: str, column: str, part: Any, expected: Any) -> float:
    """Distance of a block from a matrix, as a share of the matrix; of zero, as a share of the
    whole."""
    size = expected.norm() or found.dense().norm()
    return float((found.block(row, column, part).dense() - expected).norm() / size)


@cases
@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_a_temperature_divides_the_queries(case: Case, temperature: float) -> None:
    """H_τ is H at W_Q / τ with each query index divided by τ."""
    made = arguments(case)
    warm = attention_hessian(**made | {"temperature": temperature})
    small = attention_hessian(**made | {"w_query": made["w_query"] / temperature})
    for row, column in combinations_with_replacement(warm.groups, 2):
        queries = sum(group in ("query", "query_key") for group in (row, column))
        for part in ("outer", "functional", "full"):
            expected = small.block(row, column, part).dense() / temperature**queries
            assert close(warm, row, column, part, expected) < 1e-12


@cases
def test_at_high_temperature_each_block_is_a_power_times_that_of_uniform_attention(
    case: Case,
) -> None:
    made, temperature = arguments(case), 1e7
    warm = attention_hessian(**made | {"temperature": temperature})
    limit = at_limit(attention_hessian(**made), "uniform")
    for row, column in combinations_with_replacement(limit.groups, 2):
        indices = sum(group in SCORES for group in (row, column))
        for part in ("outer", "functional"):
            if (row, column, part) == ("query", "key", "functional"):
                continue
            expected = limit.block(row, column, part).dense() / temperature**indices
            assert close(warm, row, column, part, expected) < 1e-5
    if "key" in limit.groups:
        for part, power in (("outer", 2), ("functional", 1)):
            expected = ScoreSplit(limit).block("query", "key", part).dense() / temperature**power
            found = ScoreSplit(warm).block("query", "key", part).dense()
            assert (found - expected).norm() < 1e-5 * expected.norm()


@cases
def test_uniform_attention_sees_the_covariance_of_the_permitted_tokens(case: Case) -> None:
    made = arguments(case)
    found = at_limit(attention_hessian(**made), "uniform").moments
    allowed = permitted_of(made).expand(case.tokens, case.tokens)
    for sequence, token in torch.cartesian_prod(torch.arange(2), torch.arange(case.tokens)):
        keys = made["x"][sequence][allowed[token]]
        for head in range(case.heads):
            torch.testing.assert_close(found.first[sequence, head, token], keys.mean(0))
            covariance = torch.cov(keys.T, correction=0)
            torch.testing.assert_close(found.second[sequence, head, token], covariance)


@cases
def test_zero_queries_are_uniform_attention_by_autodiff(case: Case) -> None:
    """Where q = 0 and the gradient is held, the limit's blocks without a key are those of W_Q =
    0."""
    made = arguments(case)
    zero = made | {"w_query": torch.zeros_like(made["w_query"])}
    exact = reference_hessian(zero)
    limit = at_limit(attention_hessian(**made), "uniform")
    lengths = [limit.block(group, group).shape[0] for group in limit.groups]
    place = dict(zip(limit.groups, slices(lengths), strict=True))
    kept = [group for group in limit.groups if group != "key"]
    for row, column in combinations_with_replacement(kept, 2):
        for part in ("outer", "functional"):
            expected = exact[part][place[row], place[column]]
            assert close(limit, row, column, part, expected) < 1e-12


@cases
def test_one_hot_attention_leaves_queries_and_keys_without_curvature(case: Case) -> None:
    made = arguments(case)
    limit = at_limit(attention_hessian(**made), "one-hot")
    cold = attention_hessian(**made | {"temperature": 1e-4})
    size = limit.dense().norm()
    assert (cold.dense() - limit.dense()).norm() < 1e-12 * size
    for (row, column, _), norm in limit.norms().items():
        if row in SCORES or column in SCORES:
            assert norm < 1e-12 * size
    exact = reference_hessian(made | {"temperature": 1e-4})
    for part, matrix in exact.items():
        assert (limit.dense(part) - matrix).norm() < 1e-12 * size


def test_a_row_with_two_largest_scores_has_no_one_hot_limit() -> None:
    made = arguments(Case(name="tie", special="zero query", loss="matrix"))
    with pytest.raises(ArgumentError, match=r"two largest scores .* 'uniform'"):
        at_limit(attention_hessian(**made), "one-hot")


def test_three_ties_around_one_token_are_ties() -> None:
    made = arguments(Case(name="middle", batch=1, tokens=3, special="zero query", loss="matrix"))
    made["x"][0, 0] = made["x"][0, 1:].mean(0)
    with pytest.raises(ArgumentError, match="two largest scores"):
        at_limit(attention_hessian(**made), "one-hot")


def test_equal_tokens_may_tie() -> None:
    made = arguments(Case(name="equal", special="identical tokens", loss="matrix"))
    plain = attention_hessian(**made)
    limit = at_limit(plain, "one-hot")
    torch.testing.assert_close(limit.dense(), plain.dense(), atol=1e-13, rtol=1e-13)


def test_repeated_tokens_may_tie_among_many() -> None:
    made = arguments(Case(name="repeated", width=6, tokens=12, loss="matrix", value=2))
    made |= {"x": made["x"].repeat(1, 5, 1), "gradient": made["gradient"].repeat(1, 5, 1)}
    made |= {"curvature": made["curvature"].repeat(1, 5, 1, 1)}
    limit = at_limit(attention_hessian(**made), "one-hot")
    assert limit.block("query", "query").frobenius_norm() == 0


def test_what_has_no_limit_is_refused() -> None:
    linear = attention_hessian(**arguments(Case(name="linear", scores="linear")))
    with pytest.raises(ArgumentError, match="limit: linear scores"):
        at_limit(linear, "uniform")
    with pytest.raises(ArgumentError, match="limit: 'hot' is unknown"):
        at_limit(linear, "hot")  # type: ignore[arg-type]
