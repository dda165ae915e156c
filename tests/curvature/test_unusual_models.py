"""Models whose forward pass differentiates, computes parts again, or holds a parameter in two
places."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

import hessblocks as hb
from hessblocks.curvature import custom_groups
from hessblocks.errors import HessblocksError, RunError
from tests.breadth import everyday
from tests.curvature.architectures import OPTIONS, case_of

POINTS, WIDTH = 7, 5
pytestmark = pytest.mark.filterwarnings(
    "ignore::hessblocks.curvature.AttentionBackendWarning",
    "ignore::hessblocks.curvature.PrecisionWarning",
)


def spelled_norm(x: Tensor) -> Tensor:
    """torch's own layer norm has a wrong third derivative, so that it is no witness here."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def attended(x: Tensor) -> Tensor:
    rows = x[None, None]
    return F.scaled_dot_product_attention(rows, rows, rows)[0, 0]


def spelled_attention(x: Tensor) -> Tensor:
    return (x @ x.T * x.shape[-1] ** -0.5).softmax(-1) @ x


SWAPPED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "tanh": (torch.tanh, torch.tanh),
    "method tanh": (lambda x: x.tanh(), torch.tanh),
    "gelu": (F.gelu, F.gelu),
    "tanh gelu": (lambda x: F.gelu(x, approximate="tanh"),) * 2,
    "silu": (F.silu, F.silu),
    "layer norm": (lambda x: F.layer_norm(x, (WIDTH,)), spelled_norm),
    "rms norm": (lambda x: F.rms_norm(x, (WIDTH,)),) * 2,
    "instance norm": (lambda x: F.instance_norm(x[None])[0], spelled_norm),
    "attention": (attended, spelled_attention),
    "sigmoid": (torch.sigmoid, torch.sigmoid),
}
"""Function → as the model calls it, and as the witness does."""


class Plain(nn.Module):
    """Two linear maps with a function between them."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, WIDTH), nn.Linear(WIDTH, 2)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.function(self.first(x)))
        return y


class Slope(Plain):
    """The derivative of a network by its inputs, as in residuals of differential equations."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)
        return slope


class Checkpointed(Plain):
    """Part of it is computed again in each backward pass."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(function)
        self.middle, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        for _ in range(2):
            hidden = checkpoint(self.part, hidden, use_reentrant=False)
        y: Tensor = self.last(hidden)
        return y

    def part(self, hidden: Tensor) -> Tensor:
        return self.function(self.middle(self.dropout(self.function(hidden))))


class Recurrent(nn.Module):
    """Its weights stand in a list besides, which it makes anew when they change."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTM(2, WIDTH, batch_first=True), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.cell(x[:, None])[0][:, 0])
        return y


class Twice(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(2, 2)
        self.layers = nn.ModuleList([layer, layer])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers[1](torch.sigmoid(self.layers[0](x)))
        return y


class Listed(nn.Module):
    """Its weights stand in a list of its own besides, which nobody makes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, WIDTH), nn.Linear(WIDTH, 2)
        self.pairs = [(layer.weight, layer.bias) for layer in (self.first, self.last)]

    def forward(self, x: Tensor) -> Tensor:
        for weight, bias in self.pairs:
            x = torch.tanh(F.linear(x, weight, bias))
        return x


class Hidden(Plain):
    """A module in a list of Python shares a weight with one that is registered."""

    def __init__(self) -> None:
        super().__init__(torch.tanh)
        self.others = [nn.Linear(2, WIDTH, bias=False)]
        self.others[0].weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.tanh(self.first(x) + self.others[0](x)))
        return y


class Deaf(Plain):
    """Autograd sees nothing of it."""

    def __init__(self, way: Callable[..., Callable[..., Tensor]]) -> None:
        super().__init__(torch.tanh)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(super().forward)(x)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    inputs, targets = torch.randn(2, POINTS, 2, generator=draw, dtype=torch.float64)
    return inputs, targets


def witness(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The Hessian of the mean squared error by torch alone, entry by entry."""
    parameters = dict(model.named_parameters())
    sizes = [p.numel() for p in parameters.values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = zip(parameters.items(), flat.split(sizes), strict=True)
        outputs = functional_call(model, {n: v.view_as(p) for (n, p), v in pieces}, (batch[0],))
        return (outputs - batch[1]).square().mean()

    point = torch.cat([p.detach().flatten() for p in parameters.values()])
    found: Tensor = torch.autograd.functional.hessian(loss, point)
    return found


def check(model: nn.Module, batch: tuple[Tensor, Tensor], expected: Tensor) -> None:
    problem = hb.Problem(model, [batch], loss="regression")
    group = custom_groups(model, {"all": [name for name, _ in model.named_parameters()]})["all"]
    full = hb.Hessian(problem, group).dense()
    parts = hb.OuterProduct(problem, group).dense() + hb.Functional(problem, group).dense()
    for found in (full, parts):
        assert (found - expected).norm() <= 1e-13 * expected.norm()


def check_by_differences(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    problem = hb.Problem(model, [batch], loss="regression")
    group = custom_groups(model, {"all": ["*"]})["all"]
    gradient, step = _gradient(model, batch), 1e-6
    direction = torch.randn(group.size, dtype=torch.float64)
    product = hb.Hessian(problem, group) @ direction
    _move(model, step * direction)
    difference = (_gradient(model, batch) - gradient) / step
    assert (product - difference).norm() <= 1e-4 * difference.norm()


@pytest.mark.parametrize("kind", [Plain, Slope])
@pytest.mark.parametrize("name", SWAPPED)
def test_a_model_that_differentiates_by_its_inputs(
    kind: type[Plain], name: str, batch: tuple[Tensor, Tensor]
) -> None:
    called, spelled = SWAPPED[name]
    model, other = kind(called).double(), kind(spelled).double()
    other.load_state_dict(model.state_dict())
    check(model, batch, witness(other, batch))


@pytest.mark.parametrize("name", everyday(SWAPPED, "gelu", "layer norm", "attention"))
@pytest.mark.parametrize("training", [False, True])
def test_a_model_that_computes_parts_again(
    name: str, training: bool, batch: tuple[Tensor, Tensor]
) -> None:
    called, spelled = SWAPPED[name]
    model, other = Checkpointed(called).double(), Checkpointed(spelled).double().eval()
    other.load_state_dict(model.state_dict())
    model.train(training)
    expected = witness(other, batch)
    with pytest.warns(hb.curvature.RepeatabilityWarning) if training else nullcontext():
        check(model, batch, expected)
    assert model.training == training


def test_both_at_once_are_refused(batch: tuple[Tensor, Tensor]) -> None:
    class Both(Slope):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(checkpoint(torch.tanh, x, use_reentrant=False))

    with pytest.raises(HessblocksError, match="switch checkpointing off"):
        check(Both(torch.tanh).double(), batch, torch.zeros(()))


@pytest.mark.parametrize("dim", [0, 1, None])
def test_a_weight_given_by_direction_and_length(
    dim: int | None, batch: tuple[Tensor, Tensor]
) -> None:
    """Against differences of the gradient; torch's own second derivative is no witness here."""
    model = Plain(torch.tanh).double()
    weight_norm(model.first, dim=dim)
    check_by_differences(model, batch)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_a_weight_given_by_direction_and_length_in_a_part_that_is_computed_again(
    dim: int | None, batch: tuple[Tensor, Tensor]
) -> None:
    model = Checkpointed(torch.tanh).double().eval()
    weight_norm(model.middle, dim=dim)
    before = _everything(model)
    check_by_differences(model, batch)
    assert _everything(model) == before


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_older_form_of_weight_norm_is_refused_there(batch: tuple[Tensor, Tensor]) -> None:
    model = Checkpointed(torch.tanh).double().eval()
    torch.nn.utils.weight_norm(model.middle)
    with pytest.raises(HessblocksError, match=r"_weight_norm .* switch checkpointing off"):
        check_by_differences(model, batch)
    plain = Plain(torch.tanh).double()
    torch.nn.utils.weight_norm(plain.first)
    check_by_differences(plain, batch)


def test_a_norm_by_the_statistics_of_the_batch_keeps_batches_whole(
    batch: tuple[Tensor, Tensor],
) -> None:
    class Tied(Plain):
        def __init__(self) -> None:
            super().__init__(torch.tanh)
            self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
            return y

    model = Tied().double().eval()
    check_by_differences(model, batch)
    with pytest.raises(
        HessblocksError, match="memory_limit: batch norm without running statistics"
    ):
        hb.Problem(model, [batch], "regression", memory_limit=10**6).value()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_model_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(HessblocksError, match="give the module itself"):
        hb.Problem(torch.jit.trace(Plain(torch.tanh).double(), batch[0]), [batch], "regression")


@pytest.mark.parametrize(("kind", "name"), [(Listed, "first.weight"), (Hidden, "first.weight")])
def test_a_parameter_that_is_reached_by_another_way_is_refused(
    kind: type[nn.Module], name: str, batch: tuple[Tensor, Tensor]
) -> None:
    problem = hb.Problem(kind(), [tuple(t.float() for t in batch)], "regression")
    groups = hb.parameter_groups(problem.model, "tensor")
    for asked in (hb.Hessian(problem).dense, lambda: sampled(problem, groups)):
        with pytest.raises(HessblocksError, match=rf"reaches '{name}' by another way"):
            asked()


@pytest.mark.parametrize(
    "way", [torch.no_grad(), torch.inference_mode(), lambda forward: lambda x: forward(x).detach()]
)
def test_logits_without_a_graph_are_refused(
    way: Callable[..., Callable[..., Tensor]], batch: tuple[Tensor, Tensor]
) -> None:
    problem = hb.Problem(Deaf(way).double(), [batch], "regression")
    groups = hb.parameter_groups(problem.model, "tensor")
    for asked in (hb.Hessian(problem).dense, lambda: sampled(problem, groups)):
        with pytest.raises(
            HessblocksError, match="no way from the logits of Deaf to any trainable"
        ):
            asked()


def sampled(problem: hb.Problem, groups: dict[str, hb.ParameterGroup]) -> object:
    return hb.group_norms(problem, groups, parts=["outer"], method="sampled", probes=64)


def test_a_group_that_the_logits_do_not_use_is_zero(batch: tuple[Tensor, Tensor]) -> None:
    model = Plain(torch.tanh).double()
    model.unused = nn.Linear(2, 2).double()
    problem = hb.Problem(model, [batch], "regression")
    group = custom_groups(model, {"unused": "unused.*"})["unused"]
    assert not hb.Hessian(problem, group).dense().any()


def test_a_recurrent_layer(batch: tuple[Tensor, Tensor]) -> None:
    check_by_differences(Recurrent().double(), batch)


def test_one_module_under_two_names(batch: tuple[Tensor, Tensor]) -> None:
    model, other = Twice().double(), Twice().double()
    other.load_state_dict(model.state_dict())
    before = _everything(model)
    parameters = list(model.parameters())
    check(model, batch, witness(other, batch))
    assert _everything(model) == before
    assert all(old is new for old, new in zip(parameters, model.parameters(), strict=True))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(batch[0]).square().sum().backward()
    optimiser.step()
    assert not torch.equal(model.layers[0].weight, other.layers[0].weight)


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.RepeatabilityWarning")
@pytest.mark.parametrize("name", everyday(OPTIONS, "gpt2", "llama", "bert"))
@pytest.mark.parametrize("raising", [False, True])
def test_a_call_does_not_change_the_model(name: str, raising: bool) -> None:
    case = case_of(name)
    case.model.train()
    next(case.model.parameters()).requires_grad_(False)
    group = next(g for g in hb.parameter_groups(case.model).values() if g.role == "query")
    if raising:
        list(case.model.modules())[-1].register_forward_hook(_fail)
    before = _everything(case.model)
    with pytest.raises(RunError, match="ZeroDivisionError") if raising else nullcontext():
        problem = hb.Problem(case.model, case.batches, loss=case.loss)
        _ = hb.Hessian(problem, group) @ torch.ones(group.size, dtype=torch.float64)
    assert _everything(case.model) == before


def _fail(*_: object) -> None:
    raise ZeroDivisionError


def _everything(model: nn.Module) -> list[object]:
    """What a module is made of, tensors by identity."""
    found: list[object] = []
    for module in model.modules():
        found += [module.training, sorted(vars(module)), id(vars(module).get("forward"))]
        for register in (module._parameters, module._buffers, module._modules):
            found += [(key, id(value)) for key, value in register.items()]
        found += [p.requires_grad for p in module._parameters.values() if p is not None]
        found += [list(module._forward_hooks), list(module._forward_pre_hooks)]
    return found


def _gradient(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss = (model(batch[0]) - batch[1]).square().mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def _move(model: nn.Module, step: Tensor) -> None:
    parameters = list(model.parameters())
    pieces = step.split([p.numel() for p in parameters])
    with torch.no_grad():
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter += piece.view_as(parameter)
