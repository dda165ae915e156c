"""The diagonal as the mean of squares of sampled gradients: H_o and the Fisher matrices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.errors import ArgumentError
from hessblocks.linalg import LinearOperator
from tests.breadth import everyday


def problem(loss: Any = "classification", labels: Tensor | None = None) -> hb.Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4)).double()
    inputs = torch.randn(9, 4, dtype=torch.float64)
    labels = torch.randint(4, (9,)) if labels is None else labels
    # passes of a row or two: their matrices add up
    return hb.Problem(model, [(inputs[:4], labels[:4]), (inputs[4:], labels[4:])], loss)


WEIGHTED = nn.CrossEntropyLoss(torch.tensor([1.0, 20.0, 3.0, 0.5]).double(), label_smoothing=0.1)
SQUARES = torch.randn(9, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
BITS = (SQUARES > 0).double()

OPERATORS: dict[str, Callable[[], LinearOperator]] = {
    "H_o": lambda: hb.OuterProduct(problem()),
    "H_o, weighted labels": lambda: hb.OuterProduct(problem(WEIGHTED)),
    "H_o of squares": lambda: hb.OuterProduct(problem("regression", SQUARES)),
    "empirical": lambda: hb.EmpiricalFisher(problem()),
    "empirical, weighted labels": lambda: hb.EmpiricalFisher(problem(WEIGHTED)),
    "empirical of squares": lambda: hb.EmpiricalFisher(problem("regression", SQUARES)),
    "Monte-Carlo": lambda: hb.MonteCarloFisher(problem(), samples=6, seed=2),
    "Monte-Carlo of bits": lambda: hb.MonteCarloFisher(
        problem(nn.BCEWithLogitsLoss(), BITS), samples=3, seed=2
    ),
}


@pytest.mark.parametrize(
    "name",
    everyday(
        OPERATORS,
        "H_o",
        "empirical, weighted labels",
        "Monte-Carlo",
    ),
)
def test_squares_of_samples_have_the_diagonal_as_their_mean(name: str) -> None:
    operator = OPERATORS[name]()
    exact = operator.dense().diagonal()
    found = hb.diagonal(operator, 300, method="sampled")
    assert found.method == "sampled"
    assert (found.values >= 0).all()
    ratios = (found.values - exact).abs() / found.standard_errors
    assert (ratios < 1).double().mean() > 0.5  # entries of a row go together
    assert 0.5 < ratios.max() < 4.5
    assert found.standard_errors.max() < 0.3 * exact.max()
    assert float(found.values.sum()) == pytest.approx(float(exact.sum()), rel=0.2)


def test_a_groups_own_block_and_the_words() -> None:
    case = problem()
    groups = hb.custom_groups(case.model, {"a": "0.weight[0:2]", "b": "2.weight[:, 0:2]"})
    operator = hb.OuterProduct(case, groups["b"])
    found = hb.diagonal(operator, 300, method="sampled")
    assert ((found.values - operator.dense().diagonal()).abs() < 4 * found.standard_errors).all()
    assert "(300 samples)" in str(found)
    assert found.to_rows()[0]["method"] == "sampled"
    one, again, other = (
        hb.diagonal(operator, 20, seed, method="sampled").values for seed in (0, 0, 1)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p, g: hb.Hessian(p), "needs a Gauss-Newton or Fisher matrix"),
        (
            lambda p, g: hb.OuterProduct(p, rows=g["a"], columns=g["b"]),
            "a group's own block",
        ),
    ],
)
def test_other_operators_are_refused(make: Any, said: str) -> None:
    case = problem()
    groups = hb.custom_groups(case.model, {"a": "0.bias", "b": "2.weight[0:1]"})
    with pytest.raises(ArgumentError, match=said):
        hb.diagonal(make(case, groups), method="sampled")


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ArgumentError, match="method: 'sample' is unknown; did you mean 'sampled'"):
        hb.diagonal(hb.OuterProduct(problem()), method="sample")
