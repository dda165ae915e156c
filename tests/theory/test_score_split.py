"""H_f = H_o^T + H_f^T: both parts against autodiff of a layer whose scores are a tensor of their
own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hessblocks.theory import AttentionHessian, ScoreSplit, TokenCurvature, attention_hessian
from tests.theory.cases import Case, arguments
from tests.theory.plain import Weights, outputs, scores, weights_of

CASES = (
    Case(name="plain"),
    Case(name="heads", heads=3, value=2, out=3, width=4, mask="causal", loss="matrix"),
    Case(name="shared", heads=4, key_value_heads=2, value=2, out=3, mask="causal"),
    Case(name="shaped", gains=True, heads=2, value=2, out=3, mask="causal"),
    Case(name="linear", scores="linear", heads=2, value=2, out=3),
    Case(name="one matrix", query_key="one-matrix", heads=2, value=2, out=3),
    Case(name="rotary", head=4, turned=4, tokens=5, mask="causal"),
    Case(name="rotary heads", head=4, turned=2, heads=2, value=2, out=3),
)
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def witness(made: dict[str, Any]) -> dict[str, Tensor]:
    """Both parts by autodiff in z = (scores, weights), the Jacobian of z and the second derivatives
    of the scores."""
    weights = weights_of(made)
    sizes = [weight.numel() for weight in weights.values()]

    def unflat(theta: Tensor) -> Weights:
        split = theta.split(sizes)
        shapes = [weight.shape for weight in weights.values()]
        return {n: s.view(v) for n, s, v in zip(weights, split, shapes, strict=True)}

    def inner(theta: Tensor) -> Tensor:
        return torch.cat([scores(made, unflat(theta)).flatten(), theta])

    flat = torch.cat([weight.flatten() for weight in weights.values()])
    shape = scores(made, weights).shape
    count = scores(made, weights).numel()
    at = outputs(made, weights, scores(made, weights))
    gradient = made["gradient"] if "gradient" in made else 2 * (at - made["target"]) / at.numel()

    def outer(z: Tensor) -> Tensor:
        return (gradient * outputs(made, unflat(z[count:]), z[:count].view(shape))).sum()

    z = inner(flat)
    jacobian = torch.func.jacrev(inner)(flat)
    slopes = torch.func.grad(outer)(z)[:count]
    by_scores = torch.func.hessian(lambda theta: (slopes * inner(theta)[:count]).sum())(flat)
    return {
        "outer": jacobian.T @ torch.func.hessian(outer)(z) @ jacobian,
        "functional": by_scores,
    }


@cases
def test_both_parts_are_those_of_autodiff(case: Case) -> None:
    made = arguments(case)
    found = ScoreSplit(attention_hessian(**made))
    for part, expected in witness(made).items():
        assert (found.dense(part) - expected).norm() <= 1e-12 * found.dense().norm()


@cases
def test_the_parts_add_up_to_the_functional_hessian(case: Case) -> None:
    hessian = attention_hessian(**arguments(case))
    found = ScoreSplit(hessian)
    whole = hessian.dense("functional")
    for sum_of_parts in (found.dense(), found.dense("outer") + found.dense("functional")):
        assert (sum_of_parts - whole).norm() <= 1e-14 * whole.norm()


@cases
def test_the_scores_part_stands_between_queries_and_keys_alone(case: Case) -> None:
    found = ScoreSplit(attention_hessian(**arguments(case)))
    norms = found.norms()
    for (row, column, part), norm in norms.items():
        if part == "functional":
            assert (norm > 0) == ({row, column} == {"query", "key"})
    if case.scores == "linear":
        assert norms["query", "key", "outer"] == norms["query", "query", "outer"] == 0


def test_what_a_network_behind_adds_is_not_part_of_the_scores() -> None:
    made = arguments(Case(name="plain", loss="matrix"))
    plain = attention_hessian(**made)
    identity = torch.eye(3, dtype=torch.float64)[None]
    behind = AttentionHessian(
        plain.layer,
        gradient=made["gradient"],
        curvature=plain.curvature,
        functional_curvature=TokenCurvature(matrix=identity),
    )
    torch.testing.assert_close(
        ScoreSplit(behind).dense("functional"), ScoreSplit(plain).dense("functional")
    )
    difference = ScoreSplit(behind).dense("outer") - ScoreSplit(plain).dense("outer")
    torch.testing.assert_close(difference, behind.dense("functional") - plain.dense("functional"))
