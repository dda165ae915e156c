"""Functions of (params, inputs) in the place of a module: the same curvature as the module's."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import hessblocks as hb
from hessblocks.errors import ArgumentError, RunError

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
DATA = [(torch.randn(n, 4).double(), torch.randint(0, 3, (n,))) for n in (6, 3)]
LOSS = nn.CrossEntropyLoss()
NAMED = {name: p.detach() for name, p in MODEL.named_parameters()}


def by_name(params: dict[str, Any], inputs: torch.Tensor) -> torch.Tensor:
    return torch.func.functional_call(MODEL, params, (inputs,))


def in_order(params: list[Any], inputs: torch.Tensor) -> torch.Tensor:
    a, b, c, d = params
    return torch.tanh(inputs @ a.T + b) @ c.T + d


def of_a_batch(params: dict[str, Any], batch: dict[str, Any]) -> torch.Tensor:
    return by_name(params, batch["x"])


BATCHES = [{"x": x, "labels": y} for x, y in DATA]


@pytest.mark.parametrize(
    ("function", "params", "data"),
    [
        (by_name, NAMED, DATA),
        (in_order, list(NAMED.values()), DATA),
        (in_order, tuple(MODEL.parameters()), DATA),
        (of_a_batch, NAMED, BATCHES),
    ],
)
def test_the_hessian_is_that_of_the_module(function: Any, params: Any, data: Any) -> None:
    expected = hb.Problem(MODEL, DATA, LOSS)
    problem = hb.Problem(function, data, LOSS, params=params)
    assert problem.value() == pytest.approx(expected.value(), rel=1e-12)
    for kind in (hb.Hessian, hb.OuterProduct):
        torch.testing.assert_close(kind(problem).dense(), kind(expected).dense())
    names = list(NAMED) if isinstance(params, dict) else ["0", "1", "2", "3"]
    assert list(problem.parameters) == names


def test_groups_and_maps_are_of_its_parameters() -> None:
    problem = hb.Problem(by_name, DATA, LOSS, params=NAMED)
    patterns = {"first": "0.*", "last": ["2.weight", "2.bias"]}
    groups = hb.custom_groups(problem.model, patterns)
    whole = hb.parameter_groups(problem.model, level="tensor")
    assert sum(group.size for group in whole.values()) == sum(map(torch.numel, NAMED.values()))
    expected = hb.Problem(MODEL, DATA, LOSS)
    block = hb.Hessian(expected, hb.custom_groups(MODEL, patterns)["last"]).dense()
    torch.testing.assert_close(hb.Hessian(problem, groups["last"]).dense(), block)
    found = hb.curvature_map(problem, groups, probes=32)  # more than the last group has entries
    assert found.table["last", "last"].value == pytest.approx(float(block.norm()), rel=1e-9)


def test_what_is_written_into_the_tensors_is_seen() -> None:
    params = {name: tensor.clone() for name, tensor in NAMED.items()}
    problem = hb.Problem(by_name, DATA, LOSS, params=params)
    before = problem.value()
    params["2.bias"] += torch.tensor([1.0, -1.0, 0.5])
    assert problem.value() != pytest.approx(before, rel=1e-3)


def test_a_tensor_that_stands_twice_is_one_parameter() -> None:
    weight = torch.randn(3, 3).double()
    x, y = torch.randn(5, 3).double(), torch.randint(0, 3, (5,))

    def function(params: Any, inputs: Any) -> Any:
        return torch.tanh(inputs @ params[0]) @ params[1]

    problem = hb.Problem(function, [(x, y)], LOSS, params=[weight, weight])

    def loss(own: torch.Tensor) -> torch.Tensor:
        return LOSS(function([own, own], x), y)

    expected = torch.autograd.functional.hessian(loss, weight).reshape(9, 9)
    torch.testing.assert_close(hb.Hessian(problem).dense(), expected)


def test_a_function_that_writes_its_parameters_is_refused() -> None:
    def writes(params: Any, inputs: Any) -> Any:
        params["2.bias"].data += 1.0
        return by_name(params, inputs)

    problem = hb.Problem(writes, DATA, LOSS, params={k: v.clone() for k, v in NAMED.items()})
    with pytest.raises(RunError, match=r"writes other values into '2.bias' of FunctionModel"):
        problem.value()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("model", "params", "message"),
    [
        (by_name, None, "got function without params"),
        (by_name, {}, "got function without params"),
        (MODEL, NAMED, "got Sequential with params"),
        ("a name", NAMED, "got a name"),
        (by_name, {"w": 3}, "'w': int"),
        (by_name, {0: torch.ones(2)}, "0: torch.float32"),
        (by_name, [torch.ones(2), torch.tensor([1, 2])], "'1': torch.int64"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(model: Any, params: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        hb.Problem(model, DATA, LOSS, params=params)
