"""H_f where it is a millionth of H_o: formed directly it is right, by subtraction it is noise."""

from typing import Any

import torch
from torch import Tensor, nn

from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.products.operators import Functional, Hessian, OuterProduct
from hessblocks.curvature.products.problem import Problem


def nearly_fitted(outputs: Tensor, batch: Any) -> Tensor:
    """H_ℓ = 1 and ∂ℓ/∂f = 1e-6, whatever the outputs are."""
    return (1e-6 * outputs + 0.5 * (outputs - outputs.detach()).square()).sum(dim=-1)


def blocks(model: nn.Module, x: Tensor) -> list[Tensor]:
    problem = Problem(model, [x], nearly_fitted)
    group = parameter_groups(model)["0.weight"]
    kinds = (Functional, Hessian, OuterProduct)
    return [kind(problem, group).dense().double() for kind in kinds]


def test_a_small_functional_part_is_right_in_float32() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(16, 4)
    functional, full, outer = blocks(model, x)
    truth, _, _ = blocks(model.double(), x.double())
    assert 1e-7 < float(truth.norm() / outer.norm()) < 1e-5
    assert float((functional - truth).norm() / truth.norm()) < 1e-5
    assert float((full - outer - truth).norm() / truth.norm()) > 1e-2


def test_a_linear_model_has_none() -> None:
    model = nn.Linear(4, 3)
    problem = Problem(model, [(torch.randn(5, 4), torch.randint(0, 3, (5,)))], "classification")
    assert not Functional(problem, parameter_groups(model)["weight"]).dense().any()
