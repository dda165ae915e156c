"""hb.check_derivatives: every loss, group by group, in each dtype."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import hessblocks as hb
from hessblocks.curvature import merge
from hessblocks.curvature.witness import Agreement, compare_at_steps
from hessblocks.errors import ArgumentError
from tests.curvature.cases import CASES
from tests.curvature.test_hidden_derivatives import (
    Inside,
    Kept,
    Network,
    Once,
    Recomputing,
    Right,
    StraightThrough,
    data,
    problem_of,
)

Verdicts = dict[str, tuple[str, str]]


def verdicts(found: hb.curvature.DerivativeCheck) -> Verdicts:
    return {each.group: (each.first.verdict, each.second.verdict) for each in found.groups}


def by_tensor(problem: hb.Problem) -> hb.curvature.DerivativeCheck:
    return hb.check_derivatives(problem, hb.parameter_groups(problem.model, "tensor"))


@pytest.mark.parametrize("name", ["classification", "regression", "callable", "gpt2"])
def test_derivatives_of_every_loss_are_right(name: str) -> None:
    case = CASES[name]()
    found = hb.check_derivatives(case.problem)
    assert found.verdict == "right"
    assert "wrong" not in {each.verdict for each in found.groups}


def squares(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (outputs - F.one_hot(batch[1], 3)).pow(2).sum(-1)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(label_smoothing=0.1), squares])
def test_loss_modules_and_functions_are_checked_too(loss: Any) -> None:
    problem = hb.Problem(Network(torch.tanh).double(), data(), loss)
    assert set(verdicts(by_tensor(problem)).values()) == {("right", "right")}


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.PrecisionWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_second_derivative_that_is_wrong_is_named_by_group(dtype: Any) -> None:
    found = by_tensor(problem_of(Network(Kept.apply), dtype))
    assert found.verdict == "wrong"
    assert verdicts(found) == {
        "first.weight": ("right", "wrong"),
        "first.bias": ("right", "wrong"),
        "last.weight": ("right", "right"),
        "last.bias": ("right", "right"),
    }
    assert found.dtype == torch.float64


def test_a_gradient_that_is_missing_is_seen_although_second_derivatives_agree() -> None:
    """H z and the differences of the gradient are both 0: only the loss tells."""
    found = by_tensor(problem_of(Inside(lambda block, x: Recomputing.apply(block, x)).eval()))
    assert {v for n, v in verdicts(found).items() if n.startswith("block")} == {("wrong", "right")}
    assert verdicts(found)["last.bias"][0] == "right"
    assert "block.0.weight" in str(found)
    assert str(found).startswith("derivatives of 8 groups (by differences, torch.float64): wrong")


def test_once_differentiable_is_seen_above_and_below() -> None:
    """torch leaves its way out of the second derivative without a word, in both directions."""
    found = verdicts(by_tensor(problem_of(Network(Once.apply))))
    assert set(found.values()) == {("right", "wrong")}


def test_a_straight_through_gradient_is_wrong_once() -> None:
    found = verdicts(by_tensor(problem_of(Network(StraightThrough.apply))))
    assert found["first.weight"][0] == "wrong"


def test_a_function_inside_a_loss_is_seen() -> None:
    def loss(outputs: Tensor, batch: Any) -> Tensor:
        return Kept.apply(outputs - 1).sum(-1)

    found = by_tensor(hb.Problem(Network(torch.tanh).double(), data(), loss))
    assert found.verdict == "wrong"
    assert {first for first, _ in verdicts(found).values()} == {"right"}


@pytest.mark.parametrize(("dtype", "seed"), [(torch.float64, 5), (torch.float32, 0)])
def test_kinks_do_not_make_right_derivatives_wrong(dtype: torch.dtype, seed: int) -> None:
    """In float64 one lies nearer than the first step; in float32 each step crosses many."""
    torch.manual_seed(seed)
    parts: list[nn.Module] = [nn.Linear(32, 128)]
    for _ in range(4):
        parts += [nn.ReLU(), nn.Linear(128, 128)]
    model = nn.Sequential(*parts, nn.ReLU(), nn.Linear(128, 3)).to(dtype)
    batch = torch.randn(64, 32, dtype=dtype), torch.randint(0, 3, (64,))
    found = by_tensor(hb.Problem(model, batch, "classification"))
    assert {each.verdict for each in found.groups} == {"right"}


def test_a_fused_weight_is_checked_piece_by_piece() -> None:
    case = CASES["gpt2"]()
    groups = hb.parameter_groups(case.model)
    three = {name: groups[f"layers.0.attention.{name}"] for name in ("query", "key", "value")}
    slopes = [each.first.found for each in hb.check_derivatives(case.problem, three).groups]
    assert len(set(slopes)) == 3
    weight = {"all": merge("all", [*three.values()])}
    whole = hb.check_derivatives(case.problem, weight).groups[0].first.found
    assert sum(slopes) == pytest.approx(whole, rel=1e-9)


def test_unused_parameters_are_right() -> None:
    found = by_tensor(CASES["classification"]().problem)
    assert verdicts(found)["unused"] == ("right", "right")


def test_rows_model_and_weights() -> None:
    model = Network(Right.apply).double()
    before = {n: (t, t.clone()) for n, t in model.state_dict(keep_vars=True).items()}
    rows = by_tensor(problem_of(model)).to_rows()
    assert len(rows) == 2 * 4
    assert rows[1]["derivative"] == "H z"
    assert rows[1]["found"] == pytest.approx(rows[1]["difference"], rel=1e-6)
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert tensor is before[name][0]
        assert torch.equal(tensor, before[name][1])
        assert tensor.grad is None


def comparison(**keywords: float) -> Agreement:
    return Agreement(
        **{"found": 1.0, "expected": 1.0, "gap": 0.0, "error": 0.0, "tolerance": 1e-6} | keywords
    )


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (comparison(), "right"),
        (comparison(gap=2e-6), "wrong"),
        (comparison(gap=2e-6, error=1e-6), "right"),
        (comparison(gap=2.5e-3, error=1e-3), "wrong"),
        (comparison(gap=0.2, error=0.2), "unclear"),
        (comparison(found=0.0, expected=0.0), "right"),
        (comparison(gap=float("nan")), "wrong"),
    ],
)
def test_verdicts(one: Agreement, verdict: str) -> None:
    assert one.verdict == verdict


@pytest.mark.parametrize(("grows", "verdict"), [(8, "unclear"), (1, "wrong")])
def test_two_steps_must_find_alike_gaps(grows: int, verdict: str) -> None:
    """Gaps that grow as steps shrink are rounding, of a part that computes in less than its
    dtype."""
    gaps = iter([0.2, 0.2 * grows, 0.2 * grows**2, 0.2 / grows, 0.2 / grows**2])
    errors = iter([1e-3, 2e-3, 3e-3, 4e-3, 5e-3])
    (found,) = compare_at_steps(
        lambda parameters, gradient: (0.0, {}),
        {"a": torch.ones(1)},
        {"a": torch.ones(1)},
        lambda seen: [comparison(gap=next(gaps), error=next(errors))],
        gradients=False,
    )
    assert found.verdict == verdict


def test_shared_problems_and_strange_groups_are_refused() -> None:
    problem = problem_of(Network(torch.tanh))
    other: Callable[..., Any] = nn.Linear
    with pytest.raises(ArgumentError, match="groups"):
        hb.check_derivatives(problem, hb.parameter_groups(other(2, 2), "tensor"))
