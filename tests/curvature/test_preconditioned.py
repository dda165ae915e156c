"""Sharpness with the optimiser's preconditioner against dense eigenvalues in float64, and its
thresholds by running them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon, NAdam, Optimizer

import hessblocks as hb
from hessblocks.errors import ArgumentError
from tests.breadth import everyday
from tests.curvature.cases import (
    CONTEXT,
    VOCABULARY,
    Case,
    gpt2_case,
    padded_batches,
    preset_case,
    stir,
)
from tests.curvature.oracle import dense

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")

Made = Callable[[list[nn.Parameter]], Optimizer]
OPTIMISERS: dict[str, Made] = {
    "sgd": lambda p: SGD(p, lr=1e-2),
    "momentum": lambda p: SGD(p, lr=1e-2, momentum=0.9),
    "adam": lambda p: Adam(p, lr=1e-3, betas=(0.8, 0.9), eps=1e-3),
    "amsgrad": lambda p: Adam(p, lr=1e-3, betas=(0.8, 0.9), eps=1e-3, amsgrad=True),
    "adamw": lambda p: AdamW(p, lr=1e-3, eps=1e-6, weight_decay=0.1),
    "foreach": lambda p: AdamW(p, lr=1e-3, eps=1e-6, foreach=True),
}


def step(case: Case, optimizer: Optimizer) -> list[Tensor | None]:
    """One step on all batches; the gradients, in the order of the parameters."""
    optimizer.zero_grad()
    for batch in case.batches:
        case.model(**batch, labels=batch["input_ids"]).loss.backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in case.model.parameters()]
    optimizer.step()
    return gradients


def roots_by_hand(optimizer: Optimizer, seen: list[list[Tensor | None]]) -> Tensor:
    """D^(-1/2) of all parameters from the gradients alone."""
    settings = optimizer.defaults
    columns = [[g for g in column if g is not None] for column in zip(*seen, strict=True)]
    if isinstance(optimizer, SGD):
        return torch.cat([torch.ones_like(column[0].reshape(-1)) for column in columns])
    (beta, decay), roots = settings["betas"], []
    for column in columns:
        second = largest = torch.zeros_like(column[0])
        for gradient in column:
            second = decay * second + (1 - decay) * gradient**2
            largest = torch.maximum(largest, second)
        v = (largest if settings["amsgrad"] else second) / (1 - decay ** len(column))
        d = (1 - beta ** len(column)) * (v.sqrt() + settings["eps"])
        roots.append(d.reshape(-1) ** -0.5)
    return torch.cat(roots)


def trained(case: Case, kind: str, steps: int = 3) -> tuple[Optimizer, Tensor]:
    optimizer = OPTIMISERS[kind](list(case.model.parameters()))
    seen = [step(case, optimizer) for _ in range(steps)]
    return optimizer, roots_by_hand(optimizer, seen)


@pytest.mark.parametrize("kind", everyday(OPTIMISERS, "sgd", "amsgrad"))
def test_it_is_the_largest_eigenvalue_of_the_dense_matrix(kind: str) -> None:
    case = gpt2_case()
    optimizer, roots = trained(case, kind)
    matrix = roots[:, None] * dense(case).full * roots
    largest = torch.linalg.eigvalsh(matrix)[-1].item()
    problem = case.problem
    found = hb.preconditioned_sharpness(problem, optimizer, products=300)
    assert found.value == pytest.approx(largest, rel=1e-9)
    assert found.residual < 1e-6 * largest
    operator = hb.PreconditionedHessian(problem, optimizer)
    torch.testing.assert_close(operator.dense(), matrix, rtol=1e-8, atol=1e-10 * largest)


def test_a_group_has_its_own_block_also_of_a_fused_weight() -> None:
    case = gpt2_case()
    optimizer, roots = trained(case, "adam")
    whole = dense(case)
    for group in hb.select_groups(hb.parameter_groups(case.model), ["*.key", "*.mlp.in"]).values():
        places = whole.places(group)
        matrix = roots[places][:, None] * whole.block("full", group, group) * roots[places]
        found = hb.preconditioned_sharpness(case.problem, optimizer, group, products=300)
        assert found.value == pytest.approx(torch.linalg.eigvalsh(matrix)[-1].item(), rel=1e-8)


@pytest.mark.slow
def test_five_products_follow_a_training_and_say_how_far_they_are_off() -> None:
    sizes = {"depth": 1, "width": 4, "heads": 2, "mlp_width": 6}
    model = hb.build("sas-p", vocab_size=VOCABULARY, context=CONTEXT, **sizes)
    case = Case(model=stir(model), batches=padded_batches())
    optimizer = OPTIMISERS["adamw"](list(case.model.parameters()))
    found, warm, cold = None, [], []
    for _ in range(8):
        step(case, optimizer)
        found = hb.preconditioned_sharpness(case.problem, optimizer, start=found)
        values = torch.linalg.eigvalsh(hb.PreconditionedHessian(case.problem, optimizer).dense())
        assert found.products == 5
        assert found.value <= values[-1].item() * (1 + 1e-9)
        assert (values - found.value).abs().min().item() <= found.residual * (1 + 1e-6)
        assert found.vector.norm().item() == pytest.approx(1)
        alone = hb.preconditioned_sharpness(case.problem, optimizer)
        warm.append(1 - found.value / values[-1].item())
        cold.append(1 - alone.value / values[-1].item())
    assert max(warm[4:]) < 0.01
    assert sum(warm[4:]) < 0.1 * sum(cold[4:])


def test_entries_that_the_optimiser_does_not_move_do_not_count() -> None:
    case = gpt2_case()
    moved = [p for name, p in case.model.named_parameters() if "h.0" in name]
    unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = Adam([*moved, unused], lr=1e-3)
    step(case, optimizer)
    case.model.register_parameter("unused", unused)  # without state: it never had a gradient
    own = hb.custom_groups(case.model, {"moved": "transformer.h.0.*"})["moved"]
    asked = {"products": 300, "start": None}
    of_all = hb.preconditioned_sharpness(case.problem, optimizer, **asked)  # type: ignore[arg-type]
    of_own = hb.preconditioned_sharpness(case.problem, optimizer, own, products=300)
    assert of_all.value == pytest.approx(of_own.value, rel=1e-8)
    head = hb.custom_groups(case.model, {"first": "transformer.wte.weight"})["first"]
    with pytest.raises(ArgumentError, match="Adam has moved none of the parameters"):
        hb.preconditioned_sharpness(case.problem, optimizer, head)


def stays(optimizer: Callable[[nn.Parameter, float], Optimizer], curvature: float) -> bool:
    """Whether 2,000 steps on curvature · x² / 2 come nearer to 0."""
    x = nn.Parameter(torch.ones((), dtype=torch.float64))
    moving = optimizer(x, 0.1)
    for _ in range(2000):
        x.grad = curvature * x.detach()
        moving.step()
    return abs(x.item()) < 1


SGDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "dampened": {"momentum": 0.9, "dampening": 0.5},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}


@pytest.mark.parametrize("kind", SGDS)
def test_the_threshold_is_where_sgd_becomes_unstable(kind: str) -> None:
    case = gpt2_case()
    optimizer = SGD(case.model.parameters(), lr=0.1, **SGDS[kind])
    edge = hb.preconditioned_sharpness(case.problem, optimizer, products=1).threshold
    assert stays(lambda x, lr: SGD([x], lr=lr, **SGDS[kind]), 0.99 * edge)
    assert not stays(lambda x, lr: SGD([x], lr=lr, **SGDS[kind]), 1.01 * edge)


def test_the_threshold_of_adam_is_38_over_its_rate() -> None:
    case = gpt2_case()
    optimizer, _ = trained(case, "adamw")
    assert hb.preconditioned_sharpness(case.problem, optimizer).threshold == pytest.approx(38e3)
    # Adam with D held at 1 is SGD on the moving average of gradients
    average = {"momentum": 0.9, "dampening": 0.9}
    assert stays(lambda x, lr: SGD([x], lr=lr, **average), 0.99 * 38 / 0.1)
    assert not stays(lambda x, lr: SGD([x], lr=lr, **average), 1.01 * 38 / 0.1)
    optimizer.param_groups[0]["lr"] = 0.0
    assert hb.preconditioned_sharpness(case.problem, optimizer).threshold == math.inf
    rates = [{"params": [p], "lr": 1e-3 * n} for n, p in enumerate(case.model.parameters())]
    several = hb.preconditioned_sharpness(case.problem, SGD(rates), products=1)
    assert math.isnan(several.threshold)


def test_it_is_printed_as_a_line() -> None:
    case = gpt2_case()
    optimizer, _ = trained(case, "adamw")
    found = repr(hb.preconditioned_sharpness(case.problem, optimizer))
    assert found.endswith(", 5 products; stable up to 3.8e+04)")


@pytest.mark.bad_input
def test_what_has_no_preconditioner_is_refused() -> None:
    case = gpt2_case()
    parameters = list(case.model.parameters())
    with pytest.raises(ArgumentError, match=r"expected torch's SGD, Adam or AdamW.*\.NAdam"):
        hb.preconditioned_sharpness(case.problem, NAdam(parameters))
    matrix = next(p for p in parameters if p.ndim == 2)
    with pytest.raises(
        ArgumentError, match=r"Muon has none: its step has one length whatever the grad"
    ):
        hb.preconditioned_sharpness(case.problem, Muon([matrix]))
    for kind in (SGD, AdamW):
        with pytest.raises(ArgumentError, match="expected maximize=False"):
            hb.preconditioned_sharpness(case.problem, kind(parameters, lr=0.1, maximize=True))
    with pytest.raises(ArgumentError, match="Adam after its first step"):
        hb.preconditioned_sharpness(case.problem, AdamW(parameters))
    other, _ = trained(gpt2_case(), "adam")
    with pytest.raises(ArgumentError, match="give the optimiser of this model"):
        hb.preconditioned_sharpness(case.problem, other)
    without, _ = trained(case, "adam")
    without.param_groups[0]["eps"] = 0.0
    without.state[parameters[0]]["exp_avg_sq"].zero_()
    with pytest.raises(ArgumentError, match="0 or not finite at some entries; look at eps"):
        hb.preconditioned_sharpness(case.problem, without)
    sharded = case.problem
    sharded.sharded = True
    with pytest.raises(ArgumentError, match="model: its parameters are sharded"):
        hb.preconditioned_sharpness(sharded, SGD(parameters))
    with pytest.raises(ArgumentError, match=r"problem: expected hessblocks\.Problem"):
        hb.preconditioned_sharpness(case.model, SGD(parameters))  # type: ignore[arg-type]
    for products in (0, 2.5, True):
        with pytest.raises(ArgumentError, match="products: expected a whole number above 0"):
            hb.preconditioned_sharpness(case.problem, SGD(parameters), products=products)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="start: expected"):
        hb.preconditioned_sharpness(case.problem, SGD(parameters), start=torch.ones(3))


@pytest.mark.parametrize("kind", everyday(["momentum", "adam"], "adam"))
def test_the_loss_bends_by_the_eigenvalue_along_a_named_eigenvector(kind: str) -> None:
    case = preset_case("sas-p")
    optimizer, _ = trained(case, kind)
    problem = case.problem
    operator = hb.PreconditionedHessian(problem, optimizer)
    top = hb.extreme_eigenvalues(operator, which="largest")
    named, step = operator.named_tensors(top.vectors[:, 0]), 1e-4
    before, here, after = hb.loss_along(problem, named, [-step, 0.0, step]).losses
    assert (before - 2 * here + after) / step**2 == pytest.approx(float(top.values[0]), rel=1e-3)
