"""A product alone equals those by a plan, is compared once, and falls back to a plan."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import hessblocks as hb
from hessblocks.curvature.products import single
from hessblocks.errors import RunError
from tests.curvature.cases import stir

X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double(), torch.arange(6) % 4
GENERATOR = torch.Generator()
PRIVATE, COUNTER = np.random.default_rng(0), itertools.count(1)


class Network(nn.Module):
    """A network with a layer norm, whose hidden layer a function changes."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda hidden: hidden) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 4)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.change(torch.tanh(self.norm(self.first(x)))))
        return logits


def slope(hidden: Tensor) -> Tensor:
    """Part of a forward pass that differentiates a layer norm, as a force field does."""
    with torch.enable_grad():
        start = hidden if hidden.requires_grad else hidden.detach().requires_grad_()
        normed = F.layer_norm(start, (5,)).pow(3).sum()
        return torch.autograd.grad(normed, start, create_graph=True)[0]


def rounded(hidden: Tensor) -> Tensor:
    """Part in single precision."""
    return (hidden.float() * 1.5).double()


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda hidden: hidden,
    "differentiates": slope,
    "casts": rounded,
    "reads data": lambda hidden: hidden * hidden.data.abs().max(),
    "numbers from outside": lambda hidden: hidden * torch.tensor([1.5]).double(),
}


def problem_of(change: Callable[[Tensor], Tensor]) -> hb.Problem:
    return hb.Problem(stir(Network(change)), [(X, Y)], loss="classification")


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.PrecisionWarning")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [hb.Hessian, hb.OuterProduct, hb.Functional])
def test_a_product_alone_is_that_of_several(change: str, kind: Any) -> None:
    problem = problem_of(CHANGES[change])
    operator = kind(problem)
    vector = torch.randn(operator.shape[1], generator=torch.Generator().manual_seed(1)).double()
    alone = operator @ vector
    assert change != "none" or "plan" not in vars(problem)
    expected = operator.dense() @ vector
    bound = 1e-5 if change == "casts" else 1e-12
    assert float((alone - expected).norm()) < bound * float(expected.norm())


def test_a_layer_norm_that_the_forward_pass_differentiates_has_its_third_derivative() -> None:
    assert hb.check_derivatives(problem_of(slope)).verdict == "right"


RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda hidden: F.dropout(hidden, 0.5),
    "own generator": lambda hidden: hidden * torch.rand(5, generator=GENERATOR).double(),
    "numpy": lambda hidden: hidden * float(np.random.rand()),
    "numpy's own": lambda hidden: hidden * PRIVATE.random(),
    "Python": lambda hidden: hidden * random.random(),
    "last row": lambda hidden: torch.cat([hidden[:-1], hidden[-1:] * random.random()]),
    "counter": lambda hidden: hidden * next(COUNTER),
    "clock": lambda hidden: hidden * (1 + time.perf_counter_ns() % 1000),
}


@pytest.mark.parametrize("change", RANDOM)
@pytest.mark.parametrize("kind", [hb.Hessian, hb.OuterProduct])
def test_a_product_alone_of_a_random_model_is_refused(change: str, kind: Any) -> None:
    operator = kind(problem_of(RANDOM[change]))
    with pytest.raises(RunError, match="two passes over the same row differ"):
        operator @ torch.ones(operator.shape[1]).double()


@pytest.mark.parametrize(("kind", "first"), [(hb.Hessian, 2), (hb.OuterProduct, 2)])
def test_a_product_alone_is_compared_the_first_time(kind: Any, first: int) -> None:
    passes: list[int] = []
    operator = kind(problem_of(lambda hidden: passes.append(1) or hidden))
    for expected in (first, first if kind is hb.OuterProduct else 1):  # forward mode has its own
        passes.clear()
        _ = operator @ torch.ones(operator.shape[1]).double()
        assert len(passes) == expected


def test_a_wrong_function_that_is_switched_on_later_is_refused() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
            return 2 * cotangents[0]

    network = stir(Network())
    problem = hb.Problem(network, [(X, Y)], loss="classification")
    assert problem.plan.passes
    network.change = Wrong.apply
    with pytest.raises(hb.ArgumentError):
        hb.Hessian(problem) @ torch.ones(sum_of(problem)).double()


def test_what_forward_mode_loses_whole_is_seen() -> None:
    class Detached(Network):
        def forward(self, x: Tensor) -> Tensor:
            scale = self.norm.weight
            scale = scale if scale.requires_grad else scale.detach()
            hidden = torch.tanh(self.first(x)) * scale
            return self.last(hidden)

    problem = hb.Problem(stir(Detached()), [(X, Y)], loss="classification")
    operator = hb.OuterProduct(
        problem, hb.custom_groups(problem.model, {"norm": "norm.weight"})["norm"]
    )
    vector = torch.randn(5, generator=torch.Generator().manual_seed(2)).double()
    assert torch.allclose(operator @ vector, operator.dense() @ vector, rtol=1e-10)


def test_a_graph_that_may_not_fit_is_counted_and_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(CHANGES["none"])
    operator, vector = hb.Hessian(problem), torch.ones(sum_of(problem)).double()
    monkeypatch.setattr(single, "default_limit", lambda device: 4 * 8 * sum_of(problem) + 2000)
    alone = operator @ vector
    assert "plan" in vars(problem)
    assert torch.allclose(alone, operator.dense() @ vector, rtol=1e-12)


def test_a_bare_except_of_the_model_does_not_hide_a_graph_that_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fragile(Network):
        def forward(self, x: Tensor) -> Tensor:
            try:
                return super().forward(x).exp().sin()
            except:  # noqa: E722
                return self.last.bias.expand(len(x), 4)

    problem = hb.Problem(stir(Fragile()), [(X, Y)], loss="classification")
    operator, vector = hb.Hessian(problem), torch.ones(sum_of(problem)).double()
    expected = operator.dense() @ vector
    other = hb.Problem(problem.model, [(X, Y)], loss="classification")
    for room in range(0, 30000, 1000):
        monkeypatch.setattr(
            single, "default_limit", lambda device, room=room: 4 * 8 * sum_of(other) + room
        )
        vars(other).pop("plan", None)
        other.checked.clear()
        assert torch.allclose(hb.Hessian(other) @ vector, expected, rtol=1e-10), room


def sum_of(problem: hb.Problem) -> int:
    return sum(problem.entries.values())
