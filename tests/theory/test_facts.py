"""What the theory says about attention curvature, each fact on its own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.theory.arguments import attention_hessian
from hessblocks.theory.hessian import AttentionHessian
from tests.theory.autodiff import attention_output
from tests.theory.cases import Case, arguments


def hessian(**fields: Any) -> tuple[AttentionHessian, dict[str, Any]]:
    made = arguments(Case(name="fact", **fields))
    return attention_hessian(**made), made


def loss_gradient(made: dict[str, Any], group: str) -> Tensor:
    """∂ℓ/∂(weight) by autodiff, squared loss."""
    names = {"query": "w_query", "key": "w_key", "value": "w_value", "query_key": "w_query"}
    kept = ("query_key", "value") if made["w_key"] is None else ("query", "key", "value")
    weights = {name: made[names[name]].clone().requires_grad_() for name in kept}
    loss = (attention_output(made, weights) - made["target"]).square().mean()
    return torch.autograd.grad(loss, weights[group])[0]


def test_the_trace_of_the_outer_value_block_is_the_squared_first_moment() -> None:
    for value in (1, 3):
        found, _ = hessian(batch=1, value=value)
        expected = 2 / 4 * float(found.moments.first.square().sum())
        assert found.block("value", "value", "outer").trace() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("special", ["one-hot", "identical tokens"])
def test_one_hot_attention_and_rank_collapse_leave_the_value_block_only(special: str) -> None:
    found, made = hessian(special=special)
    size = found.block("value", "value").frobenius_norm()
    for (row, column, _), norm in found.norms().items():
        if (row, column) != ("value", "value"):
            assert norm < 1e-10 * size
    for group in ("query", "key"):
        assert loss_gradient(made, group).norm() < 1e-10 * size
    moments = found.moments.norms()
    assert moments["second"].max() < 1e-12 < moments["first"].min()
    assert moments["third"].max() < 1e-12


def product_term(found: AttentionHessian) -> Tensor:
    """The (query, key) term that is there because T depends on the product W_Q W_Kᵀ."""
    block = found.block("query", "key", "functional")
    term = next(term for term in block.terms if not term.column_swapped)
    return torch.kron(term.row.T @ term.column, term.matrices.whole()[0])


def test_the_product_of_query_and_key_adds_a_block_hollow_term() -> None:
    found, made = hessian(width=3, head=2)
    term = product_term(found)
    zeros = torch.zeros_like(term)
    hollow = torch.cat([torch.cat([zeros, term], 1), torch.cat([term.T, zeros], 1)])
    values = torch.linalg.eigvalsh(hollow)
    joined = made["w_query"] @ made["w_key"].mT / 2**0.5
    one_matrix = made | {"w_query": joined, "w_key": None, "query_key": "one-matrix"}
    singular = torch.linalg.svdvals(loss_gradient(one_matrix, "query_key")[0])
    # ±σ_j(∂ℓ/∂W_QK) / sqrt(K), each K times, with T = X W_QK Xᵀ.
    expected = torch.cat([singular, -singular]).repeat_interleave(2).sort().values / 2**0.5
    torch.testing.assert_close(values, expected)


def test_linear_scores_keep_the_product_term_and_nothing_else_of_the_scores() -> None:
    two, _ = hessian(scores="linear")
    one, _ = hessian(scores="linear", query_key="one-matrix")
    block = two.block("query", "key", "functional")
    torch.testing.assert_close(block.dense(), product_term(two))
    for found, groups in ((two, ("query", "key", "value")), (one, ("query_key", "value"))):
        for group in groups:
            assert found.block(group, group, "functional").frobenius_norm() == 0
            assert torch.linalg.eigvalsh(found.block(group, group, "full").dense())[0] > -1e-12


def test_the_outer_part_of_queries_and_keys_loses_rank() -> None:
    """W_Q and W_K enter by their product: K² directions leave it as it is."""
    width, head = 4, 2
    found, _ = hessian(batch=4, tokens=6, width=width, head=head, value=3)
    matrix = found.dense("outer")[: 2 * width * head, : 2 * width * head]
    assert torch.linalg.matrix_rank(matrix, hermitian=True) == 2 * width * head - head**2


def test_zero_queries_make_attention_uniform_and_keys_flat() -> None:
    found, made = hessian(special="zero query", batch=1, tokens=5)
    covariance = torch.cov(made["x"][0].T, correction=0)
    torch.testing.assert_close(found.moments.second[0, 0], covariance.expand(5, 3, 3))
    norms = found.norms()
    for part in ("outer", "functional"):
        assert norms["key", "key", part] == norms["value", "key", part] == 0
    assert norms["query", "key", "outer"] == 0 < norms["query", "key", "functional"]


def test_a_row_stochastic_matrix_can_have_norm_root_of_tokens() -> None:
    """A bound with ‖A‖₂ ≤ 1 would be wrong: here every token attends to the same one."""
    x = torch.tensor([[10.0], [0.0], [0.0], [0.0]]) + 1
    weight = torch.full((1, 1), 10.0)
    found = attention_hessian(x, weight, weight, torch.ones(1, 1), target=torch.zeros(1, 4, 1))
    attention = found.layer.attention(0)[0]
    torch.testing.assert_close(attention.sum(1), torch.ones(4))
    assert float(torch.linalg.matrix_norm(attention, 2)) == pytest.approx(4**0.5)


def test_gauss_newton_of_the_gains_is_the_whole_curvature_of_the_gains() -> None:
    found, _ = hessian(gains=True, heads=2, value=2, mask="causal")
    for row in ("alpha", "beta", "gamma"):
        for column in ("alpha", "beta", "gamma"):
            assert found.block(row, column, "functional").frobenius_norm() == 0


def test_the_third_moment_is_the_slope_of_the_second_along_the_scores() -> None:
    """M_2 is the Hessian of log Σ_j exp⟨x_j, y⟩ in y, so N_3 is its derivative along u."""
    found, made = hessian(batch=1, width=3)
    direction = (
        made["target"].new_tensor(2 / 12) * (found.layer.output() - made["target"])
    ) @ made["w_value"].mT
    query = made["x"][0] @ made["w_query"][0] @ made["w_key"][0].T / 2**0.5

    def second(y: Tensor) -> Tensor:
        return torch.func.hessian(lambda z: torch.logsumexp(made["x"][0] @ z, 0))(y)

    for n in range(4):
        _, slope = torch.func.jvp(second, (query[n],), (direction[0, n],))
        torch.testing.assert_close(found.moments.second[0, 0, n], second(query[n]))
        torch.testing.assert_close(found.moments.third[0, 0, n], slope)


def test_a_sink_is_a_token_of_zeros_with_its_score_as_bias() -> None:
    """GPT-OSS: each row's softmax has one more entry, which has no value."""
    made = arguments(Case(name="sink", heads=2, value=2, out=3, mask="causal", loss="factor"))
    sinks = torch.tensor([0.7, -1.2], dtype=torch.float64)
    x, tokens = made["x"], made["x"].shape[1]

    def output(w_query: Tensor, w_key: Tensor, w_value: Tensor, w_out: Tensor) -> Tensor:
        scores = (x[:, None] @ w_query) @ (x[:, None] @ w_key).mT / w_key.shape[2] ** 0.5
        scores = scores.masked_fill(~torch.ones(tokens, tokens).bool().tril(), -torch.inf)
        column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        attention = torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
        return (attention @ (x[:, None] @ w_value) @ w_out).sum(1)

    weights = [made[name] for name in ("w_query", "w_key", "w_value", "w_projection")]
    sizes = [weight.numel() for weight in weights]

    def flat(theta: Tensor) -> Tensor:
        pieces = zip(theta.split(sizes), weights, strict=True)
        return output(*(piece.view_as(weight) for piece, weight in pieces))

    theta = torch.cat([weight.flatten() for weight in weights])
    factor, gradient = made["curvature_factor"], made["gradient"]
    moved = torch.func.jacrev(lambda t: factor @ flat(t)[..., None])(theta).flatten(0, -2)
    bent = torch.func.hessian(lambda t: (gradient * flat(t)).sum())(theta)

    mask = torch.ones(tokens + 1, tokens + 1).bool().tril()
    mask[:, -1] = True
    bias = torch.zeros(2, tokens + 1, tokens + 1, dtype=torch.float64)
    bias[..., -1] = sinks[:, None]
    longer = {
        name: torch.nn.functional.pad(made[name], (*[0, 0] * (made[name].ndim - 2), 0, 1))
        for name in ("x", "gradient")
    }
    longer["curvature_factor"] = torch.cat([factor, torch.zeros_like(factor[:, :1])], dim=1)
    found = attention_hessian(**{**made, **longer, "mask": mask, "bias": bias})
    for part, expected in (("outer", moved.T @ moved), ("functional", bent)):
        torch.testing.assert_close(found.dense(part), expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ArgumentError, match=r"bias: expected shape \(2, 5, 5\)"):
        attention_hessian(**{**made, **longer, "mask": mask, "bias": bias[:1]})
    with pytest.raises(ArgumentError, match="bias: expected None with scores='linear'"):
        attention_hessian(**{**made, **longer, "mask": mask, "bias": bias, "scores": "linear"})
