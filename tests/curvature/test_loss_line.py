"""The loss along a line: its bend is the eigenvalue, tensors have names, and the weights stay."""

from pathlib import Path

import pytest
import torch
from torch import nn

import hessblocks as hb
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.errors import ArgumentError, RunError
from tests.breadth import everyday
from tests.curvature.cases import CASES

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
STEP = 1e-4


def bend(problem: hb.Problem, operator: hb.Hessian, vector: torch.Tensor) -> float:
    found = hb.loss_along(problem, operator.named_tensors(vector), [-STEP, 0, STEP]).losses
    return (found[0] - 2 * found[1] + found[2]) / STEP**2


@pytest.mark.parametrize(
    "name",
    everyday(
        ["pre-ln", "gpt2", "classification", "regression"], "gpt2", "classification", "regression"
    ),
)
def test_the_loss_bends_along_an_eigenvector_as_its_eigenvalue_says(name: str) -> None:
    """Of all parameters, and of groups, of which GPT-2 cuts three from one matrix."""
    case = CASES[name]()
    problem, groups = case.problem, list(parameter_groups(case.model).values())
    for group in (None, *groups[2:5]):
        operator = hb.Hessian(problem, group)
        found = hb.extreme_eigenvalues(operator, 1, "both")
        for value, vector in zip(found.values.tolist(), found.vectors.T, strict=True):
            scale = float(found.values.abs().max())
            assert bend(problem, operator, vector) == pytest.approx(value, abs=1e-4 * scale)


def test_named_tensors_have_the_shapes_of_the_parameters_and_the_entries_of_the_vector() -> None:
    case = CASES["gpt2"]()
    parameters = dict(case.model.named_parameters())
    whole = hb.Hessian(case.problem)
    vector = torch.randn(whole.shape[0], dtype=torch.float64)
    named = whole.named_tensors(vector)
    assert {n: t.shape for n, t in named.items()} == {n: p.shape for n, p in parameters.items()}
    assert torch.equal(torch.cat([named[name].flatten() for name in parameters]), vector)
    groups = parameter_groups(case.model)
    roles = [groups[f"layers.0.attention.{role}"] for role in ("query", "key", "value")]
    fused = "transformer.h.0.attn.c_attn.weight"
    total = torch.zeros_like(parameters[fused])
    for group in roles:
        operator = hb.Hessian(case.problem, group)
        ones = operator.named_tensors(torch.ones(group.size, dtype=torch.float64))
        assert set(ones) == set(group.parameters)
        total += ones[fused]
    assert torch.equal(total, torch.ones_like(total))
    with pytest.raises(
        ArgumentError, match=r"vector: expected a tensor of shape .* of several take vectors"
    ):
        whole.named_tensors(vector[:, None].expand(-1, 2))  # type: ignore[arg-type]


def test_a_step_costs_a_forward_pass() -> None:
    case, calls = CASES["classification"](), []
    case.model.register_forward_hook(lambda *_: calls.append(1))
    direction = {name: torch.ones_like(p) for name, p in case.problem.parameters.items()}
    hb.loss_along(case.problem, direction, range(21))
    planning = 2
    assert len(calls) == planning + 21 * len(case.problem.gradient_plan.passes)


def test_the_weights_stay_bit_for_bit_also_after_an_error() -> None:
    case = CASES["gpt2"]()
    before = {n: (p, p.data_ptr(), p.detach().clone()) for n, p in case.model.named_parameters()}
    direction = {name: torch.randn_like(p) for name, p in case.model.named_parameters()}
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        if len(calls) > 2 * len(case.batches):
            raise KeyError("planted")

    problem = case.problem
    assert hb.loss_along(problem, direction, [0, 0.1]).losses[0] == problem.value(twice=False)
    hook = case.model.transformer.h[1].register_forward_hook(fail)
    with pytest.raises(RunError, match="KeyError: 'planted'"):
        hb.loss_along(problem, direction, torch.linspace(-1, 1, 21))
    hook.remove()
    for name, parameter in case.model.named_parameters():
        same, place, value = before[name]
        assert parameter is same
        assert parameter.data_ptr() == place
        assert torch.equal(parameter, value)
        assert parameter.grad is None


def test_parameters_that_are_left_out_stay_where_they_are() -> None:
    model = nn.Linear(2, 1).double()
    problem = hb.Problem(model, [(torch.ones(1, 2).double(), torch.zeros(1, 1))], "regression")
    found = hb.loss_along(problem, {"bias": torch.ones(1).double()}, [0, 2])
    output = float(model.requires_grad_(False)(torch.ones(1, 2).double()))
    assert found.losses == pytest.approx([output**2, (output + 2) ** 2])


def test_a_line_is_one_line_rows_and_a_picture(tmp_path: Path) -> None:
    model = nn.Linear(2, 1).double()
    problem = hb.Problem(model, [(torch.ones(1, 2).double(), torch.zeros(1, 1))], "regression")
    found = hb.loss_along(problem, {"bias": torch.ones(1).double()}, [-1, 0, 1])
    assert repr(found).startswith("loss at 3 steps from -1 to 1 along a direction: from ")
    assert found.to_rows()[1] == {"step": 0.0, "loss": found.losses[1]}
    assert len(found.plot().axes[0].lines) == 1
    found.save(tmp_path / "line.csv")
    assert (tmp_path / "line.csv").read_text().startswith("step,loss\n-1")


@pytest.mark.bad_input
def test_what_is_no_line_is_refused() -> None:
    model = nn.Linear(2, 1)
    problem = hb.Problem(model, [(torch.ones(1, 2), torch.zeros(1, 1))], "regression")
    bias = {"bias": torch.ones(1)}
    with pytest.raises(ArgumentError, match="steps: expected finite numbers"):
        hb.loss_along(problem, bias, [])
    with pytest.raises(ArgumentError, match="steps: expected finite numbers"):
        hb.loss_along(problem, bias, [float("nan")])
    with pytest.raises(ArgumentError, match="direction: expected tensors by parameter name"):
        hb.loss_along(problem, torch.ones(3), [0.1])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"'bias': expected \(1,\), got shape \(2,\)"):
        hb.loss_along(problem, {"bias": torch.ones(2)}, [0.1])
    with pytest.raises(ArgumentError, match="'gain': expected a trainable parameter's name"):
        hb.loss_along(problem, {"gain": torch.ones(2)}, [0.1])
    with pytest.raises(RunError, match=r"loss_along: at step 1e\+30: .* the loss of batch 0"):
        hb.loss_along(problem, bias, [0, 1e30])
