"""Weights, buffers and attributes of a model have the values that they had, whatever its passes
write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hessblocks as hb
from hessblocks.errors import HessblocksError, RunError
from tests.curvature.cases import stir

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
Y = torch.tensor([0, 3, 1, 2, 0, 1])
LARGE = 9000
IDS = torch.randint(0, 11, (6, 5))


class Counter(nn.Module):
    """Counts its calls, and scales by the count."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.register_buffer("calls", torch.zeros(()).double())

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.layer(x).tanh() * self.calls
        return found


class Codebook(nn.Module):
    """Moves a large table towards what it sees, and a plain tensor too, then reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.register_buffer("codes", torch.rand(4, LARGE).double())
        self.maximum = torch.zeros(3).double()
        self.kept: dict[str, Any] = {"sum": torch.ones(4).double(), "calls": 0}

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x).tanh()
        with torch.no_grad():
            self.codes.mul_(0.5)
            torch.maximum(self.maximum, x.amax(0), out=self.maximum)
            self.kept["sum"] += 1
            self.kept["calls"] += 1
        return (y[:, :, None] * self.codes).mean(-1) * (1 + self.maximum.mean()) * self.kept["sum"]


class LowRank(nn.Module):
    """Adds its low-rank part to the weight in evaluation mode, and takes it out in training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3), requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(4, 2))
        self.merged = False

    def train(self, mode: bool = True) -> LowRank:
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * (self.b @ self.a).data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight if self.merged else self.weight + self.b @ self.a).T


class Merges(nn.Module):
    """Such a layer in a network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(3, 3), nn.Dropout(0.5), LowRank()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.drop(self.first(x).tanh()))
        return found


class Recomputed(nn.Module):
    """A counter in a part that is computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.first, self.plain = Counter(), nn.Linear(3, 3), False

    def forward(self, x: Tensor) -> Tensor:
        if self.plain:  # as the reference has it: a second count would stand in torch's gradient
            return self.inner(self.first(x))
        found: Tensor = checkpoint(self.inner, self.first(x), use_reentrant=False)
        return found


class Renormed(nn.Module):
    """Rows of an embedding are scaled down when they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(11, 4, max_norm=1.0), nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.table(ids).mean(1).tanh())
        return found


class Decays(nn.Module):
    """Writes a trained weight by its data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.layer.weight.data.mul_(0.99)
        found: Tensor = self.layer(x).tanh()
        return found


def values(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {name: t.clone() for name, t in model.state_dict().items()}
    for path, module in model.named_modules():
        for name in ("maximum", "merged"):
            if name in vars(module):
                one = vars(module)[name]
                found[f"{path}.{name}"] = one.clone() if isinstance(one, Tensor) else one
    if isinstance(model, Codebook):
        found |= {"sum": model.kept["sum"].clone(), "calls": model.kept["calls"]}
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(v, other[k]) if isinstance(v, Tensor) else v == other[k] for k, v in one.items()
    )


def reference(model: nn.Module, x: Tensor, vector: Tensor) -> Tensor:
    """H v by differences of gradients, from the same values each time."""
    named = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def gradient(step: float) -> Tensor:
        model.load_state_dict(start)
        at, moved = 0, []
        for name, value in named.items():
            piece = vector[at : at + value.numel()].view_as(value)
            at += value.numel()
            model.get_parameter(name).data.copy_(value + step * piece)
            moved.append(model.get_parameter(name))
        if isinstance(model, Codebook):
            model.maximum, model.kept = (
                torch.zeros(3).double(),
                {"sum": torch.ones(4).double(), "calls": 0},
            )
        if isinstance(model, Recomputed):
            model.plain = True
        if isinstance(model, Merges):
            model.drop.eval()
        loss = nn.functional.cross_entropy(model(x), Y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, moved)])

    found = (gradient(1e-4) - gradient(-1e-4)) / 2e-4
    model.load_state_dict(start)
    return found


ANSWERED: dict[str, Callable[[], nn.Module]] = {
    "counter": Counter,
    "codebook": Codebook,
    "low rank": Merges,
    "recomputed": Recomputed,
}


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.RepeatabilityWarning")
@pytest.mark.parametrize("mode", ["trained", "evaluated"])
@pytest.mark.parametrize("kind", ANSWERED)
def test_a_model_whose_passes_write_is_measured_and_not_changed(kind: str, mode: str) -> None:
    model = stir(ANSWERED[kind]()).train()
    if mode == "evaluated" and kind != "low rank":  # which would stand merged
        model.eval()
    before = values(model)
    problem = hb.Problem(model, [(X, Y)], loss="classification")
    operator = hb.Hessian(problem)
    vector = torch.randn(operator.shape[0]).double()
    found = operator @ vector
    assert torch.equal(operator @ vector, found)
    hb.trace(problem, probes=4)
    hb.group_norms(problem, method="sampled", parts=["outer"], probes=8)
    assert same(values(model), before)
    expected = reference(model, X, vector)
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_a_problem_is_right_after_another_of_the_same_model() -> None:
    """The other looks at the model anew; a graph that is built then holds what is put back."""
    model = stir(Codebook())
    problem = hb.Problem(model, [(X, Y)], loss="classification")
    groups = list(hb.parameter_groups(model, "tensor").values())
    vector = torch.ones(groups[0].size).double()
    expected = hb.Hessian(problem, groups[0]) @ vector
    _ = hb.Hessian(problem, groups[1]) @ torch.ones(groups[1].size).double()
    hb.Problem(model, [(X, Y)], loss="classification")
    assert torch.equal(hb.Hessian(problem, groups[0]) @ vector, expected)


def measured(model: nn.Module, batch: Any, products: int = 1) -> Tensor:
    H = hb.Hessian(hb.Problem(model, [batch], loss="classification"))
    return [H @ torch.ones(H.shape[0]).double() for _ in range(products)][-1]


def test_rows_scaled_in_the_lookup_are_named_and_put_back() -> None:
    model = stir(Renormed())
    model.table.weight.data.mul_(5)
    before = values(model)
    with pytest.raises(RunError, match=r"'table\.weight' of Embedding.*max_norm=None") as refused:
        measured(model, (IDS, Y))
    assert "two passes" not in str(refused.value)
    assert same(values(model), before)
    model(IDS)  # as the message says
    scaled = values(model)
    found = measured(model, (IDS, Y))
    assert same(values(model), scaled)
    model.table.max_norm = None
    assert torch.allclose(found, measured(model, (IDS, Y)))


def test_rows_that_only_later_passes_scale_are_put_back_too() -> None:
    model = stir(Renormed())
    model(IDS)
    model.table.weight.data[IDS[5, 0]] *= 3
    before = values(model)
    batches = [(IDS[row : row + 1], Y[row : row + 1]) for row in range(6)]
    problem = hb.Problem(model, batches, loss="classification")
    with pytest.raises(RunError, match="max_norm"):
        problem.value()
    assert same(values(model), before)


def test_a_trained_weight_that_a_pass_writes_is_named_and_put_back() -> None:
    model = stir(Decays())
    before = values(model)
    with pytest.raises(RunError, match=r"'layer\.weight' of Linear.*write it outside of forward"):
        measured(model, (X, Y))
    assert same(values(model), before)


class WritesFrozen(Decays):
    """Writes a frozen parameter in every pass but the first few, in place."""

    calls = 0

    def __init__(self, first: int) -> None:
        super().__init__()
        self.average, self.first = nn.Parameter(torch.ones(4), requires_grad=False), first

    def forward(self, x: Tensor) -> Tensor:
        WritesFrozen.calls += 1
        with torch.no_grad():
            if WritesFrozen.calls > self.first:
                self.average.mul_(0.9)
        found: Tensor = self.layer(x).tanh() * self.average
        return found


@pytest.mark.parametrize("first", [0, 2])
def test_a_frozen_parameter_that_a_pass_writes_is_refused(first: int) -> None:
    WritesFrozen.calls = 0
    model = stir(WritesFrozen(first))
    before = values(model)
    with pytest.raises(RunError, match=r"'average' of WritesFrozen.*write it outside of forward"):
        measured(model, (X, Y), products=2)  # the first alone has two passes
    assert same(values(model), before) is (first == 0)  # later writes are seen, not put back


class Fails(Counter):
    """Writes, and then raises."""

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        raise HessblocksError("broken")


def test_values_are_put_back_after_an_error() -> None:
    model = stir(Fails())
    with pytest.raises(HessblocksError, match="broken"):
        measured(model, (X, Y))
    assert not model.calls


def test_a_closed_form_leaves_buffers_as_they_were() -> None:
    model = stir(hb.build("pre-ln", depth=1, width=4, heads=2, vocab_size=7, context=6))
    model.register_buffer("calls", torch.zeros(()))
    model.register_forward_hook(lambda module, given, out: module.calls.add_(1) and None)
    hb.exact_attention_curvature(model, torch.randint(0, 7, (2, 5)))
    assert not model.calls
