"""Derivatives that a graph does not show: answered where they are right, else refused by name."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import hessblocks as hb
from hessblocks.errors import ArgumentError, HessblocksError
from tests.breadth import everyday

STEP = 1e-5


class Right(Function):
    """x³ as the documentation of torch tells one to write it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Kept(Function):
    """x³ that keeps x² beside the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.square = x * x
        return ctx.square * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * ctx.square * g


class OutsideTorch(Function):
    """The sine by numpy, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(np.cos(x.detach().numpy())) * g


class Once(Function):
    """Said to be differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return ctx.saved_tensors[0].cos() * g


class Refusing(Right):
    """Raises where it is differentiated by `torch.autograd.grad`, as checkpoints of some libraries
    do."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise RuntimeError("Checkpointing is not compatible with .grad()")


class StraightThrough(Function):
    """Rounds, and says that it does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (8 * x).round() / 8

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class Rectified(Function):
    """A right Function with a kink."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (ctx.saved_tensors[0] > 0)


class Narrow(Function):
    """A right Function that computes in float32 whatever it is given, as a kernel does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.float().sin().to(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (g.float() * x.float().cos()).to(g)


class NarrowOnly(Narrow):
    """One that takes float32 alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError(x.dtype)
        return Narrow.forward(ctx, x)


class Recomputing(Function):
    """A checkpoint as other libraries write theirs: the part runs from a closure, without a
    graph."""

    @staticmethod
    def forward(ctx: Any, part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.part = part
        ctx.save_for_backward(x)
        with torch.no_grad():
            return part(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor | None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.part(x), g)
        return None, x.grad


class Network(nn.Module):
    """A layer, something between, a layer."""

    def __init__(self, between: Callable[[Tensor], Tensor], width: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


def data(dtype: torch.dtype = torch.float64, rows: int = 5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 4, generator=draw, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 3, (rows,), generator=draw)


def problem_of(model: nn.Module, dtype: torch.dtype = torch.float64, **keywords: Any) -> hb.Problem:
    return hb.Problem(model.to(dtype), data(dtype), "classification", **keywords)


def by_differences(model: nn.Module, v: Tensor) -> Tensor:
    """H v from gradients that `.backward()` gives, which reaches what `.grad()` does not."""
    x, labels = data(v.dtype)
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for step in (STEP, -STEP):
        at = 0
        kept = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p in parameters:
                p += step * v[at : at + p.numel()].view_as(p)
                p.grad, at = None, at + p.numel()
        F.cross_entropy(model(x), labels).backward()
        found.append(
            torch.cat(
                [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
            )
        )
        with torch.no_grad():
            for p, old in zip(parameters, kept, strict=True):
                p.copy_(old)
                p.grad = None
    return (found[0] - found[1]) / (2 * STEP)


def assert_answered(model: nn.Module) -> None:
    operator = hb.Hessian(problem_of(model))
    v = torch.randn(operator.shape[1], dtype=torch.float64)
    expected = by_differences(model, v)
    assert expected.norm() > 1e-3
    assert float((operator @ v - expected).norm()) < 1e-7 * float(expected.norm())


@pytest.mark.parametrize("function", [Right, Rectified])
def test_a_function_with_right_derivatives_is_answered(function: type[Function]) -> None:
    assert_answered(Network(function.apply))


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (Kept, "Function Kept: the derivative of its backward pass is wrong"),
        (OutsideTorch, "Function OutsideTorch"),
        (Once, "Function Once: the derivative of its backward pass is wrong"),
        (Refusing, r"Function Refusing cannot be differentiated .*not compatible with .grad"),
        (StraightThrough, "StraightThrough: autograd's gradient is not that of the logits"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_function_with_wrong_derivatives_is_refused(
    function: type[Function], match: str, dtype: torch.dtype
) -> None:
    problem = problem_of(Network(function.apply), dtype)
    with pytest.raises(HessblocksError, match=match):
        hb.trace(problem, probes=4)
    with pytest.raises(HessblocksError, match=match):  # and again, from memory
        hb.OuterProduct(problem) @ torch.ones(hb.Hessian(problem).shape[1], dtype=dtype)


def test_an_operator_that_was_registered_with_torch_is_held_to_differences_too() -> None:
    @torch.library.custom_op("hessblocks_tests::swelling", mutates_args=())
    def swelling(x: Tensor) -> Tensor:
        return x.exp()

    def keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.output = output.detach()

    swelling.register_autograd(lambda ctx, g: g * ctx.output, setup_context=keep)
    with pytest.raises(ArgumentError, match=r"swelling.*wrong"):
        hb.trace(problem_of(Network(swelling)), probes=4)


@pytest.mark.parametrize("seed", range(3))
def test_kinks_elsewhere_do_not_make_a_right_function_wrong(seed: int) -> None:
    """In float32 a difference crosses kinks, which are no part of H."""
    torch.manual_seed(seed)
    parts = [nn.Linear(64, 64) if n % 2 else nn.ReLU() for n in range(8)]
    model = Network(lambda x: nn.Sequential(*parts)(Right.apply(x)), width=64)
    model.parts = nn.ModuleList(parts)
    assert math.isfinite(hb.trace(problem_of(model, torch.float32), probes=4).value)


@pytest.mark.filterwarnings(
    "ignore::hessblocks.curvature.DerivativeWarning",
    "ignore::hessblocks.curvature.PrecisionWarning",
)
@pytest.mark.parametrize("seed", everyday(range(4), 0))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [Right, Narrow])
def test_a_right_function_is_answered_in_every_dtype(
    function: type[Function], dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(Network(function.apply, width=32), nn.ReLU(), nn.Linear(3, 3))
    assert hb.trace(problem_of(model, dtype), probes=4).standard_error > 0


@pytest.mark.parametrize("seed", everyday(range(4), 0))
def test_a_function_of_one_dtype_is_answered(seed: int) -> None:
    torch.manual_seed(seed)
    problem = problem_of(Network(NarrowOnly.apply, width=32), torch.float32)
    assert hb.trace(problem, probes=4).standard_error > 0


def test_a_group_above_a_wrong_function_is_answered() -> None:
    model = Network(Kept.apply)
    problem = problem_of(model)
    groups = hb.parameter_groups(model, "tensor")
    assert hb.Hessian(problem, groups["last.weight"]).dense().isfinite().all()
    with pytest.raises(ArgumentError, match="Kept"):
        hb.Hessian(problem, groups["first.weight"]).dense()


def test_sampled_norms_need_first_derivatives_alone() -> None:
    kept, rounded = (Network(f.apply) for f in (Kept, StraightThrough))
    found = hb.group_norms(problem_of(kept), parts=["outer"], method="sampled", probes=8)
    assert all(norms["outer"].value > 0 for norms in found.values())
    with pytest.raises(ArgumentError, match="StraightThrough"):
        hb.group_norms(problem_of(rounded), parts=["outer"], method="sampled", probes=8)


class Inside(nn.Module):
    """A block that is run by something, between two layers."""

    def __init__(self, run: Callable[[nn.Module, Tensor], Tensor], *, frozen: bool = False) -> None:
        super().__init__()
        self.stem, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 6))
        self.stem.requires_grad_(not frozen)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.last(x + self.run(self.block, x if x.requires_grad else x.requires_grad_()))


def reentrant(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=True)


def nested(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(lambda y: reentrant(block, y), x, use_reentrant=True)


def in_pieces(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint_sequential(block, 2, x, use_reentrant=True)


@pytest.mark.parametrize("run", [reentrant, nested, in_pieces])
@pytest.mark.parametrize("frozen", [True, False])
def test_reentrant_checkpoints_are_answered(
    run: Callable[[nn.Module, Tensor], Tensor], frozen: bool
) -> None:
    from torch.utils.checkpoint import CheckpointFunction

    assert_answered(Inside(run, frozen=frozen).eval())
    assert "apply" not in vars(CheckpointFunction)


def test_samples_go_through_reentrant_checkpoints_too() -> None:
    plain, hidden = Inside(lambda block, x: block(x)).eval(), Inside(reentrant).eval()
    hidden.load_state_dict(plain.state_dict())
    options: dict[str, Any] = {"parts": ["outer"], "method": "sampled", "probes": 8}
    expected, found = (hb.group_norms(problem_of(m), **options) for m in (plain, hidden))
    for name, norms in expected.items():
        assert found[name]["outer"].value == pytest.approx(norms["outer"].value, rel=1e-9)


def test_a_checkpoint_of_another_library_is_refused_with_the_way_out() -> None:
    model = Inside(lambda block, x: Recomputing.apply(block, x)).eval()
    with pytest.raises(ArgumentError, match=r"'block\.0\.\w+'.*Recomputing.*use_reentrant=False"):
        hb.frobenius_norm(hb.Hessian(problem_of(model)), probes=4)
    model.block.requires_grad_(False)  # the way out that the sentence names


def test_what_is_used_without_a_graph_is_refused() -> None:
    model = Inside(lambda block, x: block(x).detach()).eval()
    with pytest.raises(ArgumentError, match=r"'block\.0\.bias'.*freeze it by requires_grad_"):
        hb.trace(problem_of(model), probes=4)
    model.block.requires_grad_(False)
    assert math.isfinite(hb.trace(problem_of(model), probes=4).value)


@pytest.mark.filterwarnings(
    "ignore:.*quantiz:DeprecationWarning",
    "ignore:.*quantiz:UserWarning",
    "ignore:.*autograd kernel:UserWarning",
)
def test_int8_layers_beside_a_skip_are_refused_by_name() -> None:
    """All that is left to train is reached through the skip, but by one of two ways alone."""
    model = Inside(lambda block, x: block(x)).eval()
    model.block = torch.ao.quantization.quantize_dynamic(model.block, {nn.Linear})
    problem = hb.Problem(model, data(torch.float32), "classification")
    with pytest.raises(ArgumentError, match=r"operation \(an int8 layer"):
        hb.trace(problem, probes=4)


class Chosen(nn.Module):
    """Parameters that truly have no derivative: unused, and used to choose alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.router = nn.Linear(4, 6), nn.Linear(4, 2)
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).argmax(-1)
        return self.layer(x).unflatten(-1, (2, 3)).tanh()[torch.arange(len(x)), chosen]


@pytest.mark.parametrize("seed", range(6))
def test_parameters_without_influence_stay_fine(seed: int) -> None:
    torch.manual_seed(seed)
    assert_answered(Chosen())


class Rooted(nn.Module):
    """A right Function beside a norm at 0, and a parameter that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(4, 3), nn.Parameter(torch.ones(3))
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return Right.apply(self.layer(x)) + self.shift.norm()


def test_what_is_not_finite_is_blamed_on_no_function() -> None:
    model = Rooted()
    problem = problem_of(model)
    with pytest.raises(
        HessblocksError, match="the loss is finite, but its second derivative is NaN"
    ):
        hb.trace(problem, probes=4)
    with torch.no_grad():
        model.layer.weight[0, 0] = math.nan
    with pytest.raises(HessblocksError, match="loss of batch 0"):
        hb.trace(problem, probes=4)
    with torch.no_grad():
        model.layer.weight[0, 0] = 1
        model.shift.fill_(1)
    assert math.isfinite(hb.trace(problem, probes=4).value)


def test_ordinary_models_have_nothing_to_guard() -> None:
    problem = problem_of(Network(torch.tanh))
    assert problem.plan.guard is None
