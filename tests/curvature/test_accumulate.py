"""Products that closed forms add to the result itself, against dense autodiff and against other
ways through them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from hessblocks.curvature import Hessian, Problem, parameter_groups
from hessblocks.curvature.closed.accumulate import Sum, adding, sum_of, wanted
from hessblocks.curvature.groups import merge
from hessblocks.curvature.products.graph import BatchGraph

WORDS, WIDTH = 7, 4


class ManyUses(nn.Module):
    """One table as lookup, linear layer, unembedding and factor, a layer used twice, a row without
    derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WORDS, WIDTH))
        self.other = nn.Embedding(WORDS, WIDTH, padding_idx=-2)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.spelled = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.shift = nn.Parameter(torch.randn(WIDTH))
        self.idle = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits, (rows, WORDS)."""
        x = F.embedding(input_ids, self.table) + self.other(input_ids)
        x = self.layer(self.layer(x).tanh()).tanh()
        x = torch.addmm(self.shift, x.flatten(0, 1), self.spelled).view_as(x)
        words = F.linear(x.tanh(), self.table, bias=None).tanh()
        return (words @ self.table * self.table.mean()).mean(1) @ self.table.T


@pytest.fixture
def problem() -> Problem:
    torch.manual_seed(0)
    model = ManyUses().double()
    rows = torch.tensor([[0, 1, 5, 5], [2, 5, 1, 1], [3, 4, 6, 0]])
    batches = [(rows[:2], torch.tensor([1, 2])), (rows[2:], torch.tensor([0]))]
    return Problem(model, batches, loss="classification")


def dense(problem: Problem) -> Tensor:
    """The whole Hessian by torch.func, of a model whose functions are torch's own."""
    model, named = problem.model, problem.parameters
    sizes = [p.numel() for p in named.values()]

    def loss(theta: Tensor) -> Tensor:
        pieces = zip(named.items(), theta.split(sizes), strict=True)
        values = {name: piece.view(p.shape) for (name, p), piece in pieces}
        total = theta.new_zeros(())
        for batch in problem.batches:
            logits = torch.func.functional_call(model, values, (batch.inputs,))
            total = total + F.cross_entropy(logits, batch.labels, reduction="sum")
        return total / problem.valid

    theta = torch.cat([p.flatten() for p in named.values()])
    return torch.func.jacrev(torch.func.grad(loss))(theta)


def test_all_uses_of_a_parameter_are_added_up(problem: Problem) -> None:
    whole, operator = dense(problem), Hessian(problem)
    start = WORDS * WIDTH + WIDTH * WIDTH + WIDTH
    assert [*problem.parameters][3] == "other.weight"
    assert not whole[start : start + WORDS * WIDTH].view(WORDS, WIDTH, -1)[-2].any()
    for vectors in (torch.randn(len(whole), 1), torch.randn(len(whole), 3)):
        vectors = vectors.double()
        for _ in range(2):  # the second time nothing is fresh by chance
            found = operator @ vectors
            assert (found - whole @ vectors).norm() < 1e-13 * (whole @ vectors).norm()
    one = [operator @ column for column in vectors.T]
    torch.testing.assert_close(torch.stack(one, 1), found, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_a_block_between_groups_is_cut_out_of_the_whole(problem: Problem) -> None:
    whole = dense(problem)
    groups = parameter_groups(problem.model, "tensor")
    ends = torch.tensor([0, *(group.size for group in groups.values())]).cumsum(0).tolist()
    places = dict(zip(groups, pairwise(ends), strict=True))
    for left, (a, b) in places.items():
        for right, (c, d) in places.items():
            block = Hessian(problem, rows=groups[left], columns=groups[right])
            for column in torch.randn(2, d - c).double():
                expected = whole[a:b, c:d] @ column
                torch.testing.assert_close(block @ column, expected, rtol=1e-11, atol=1e-14)


def test_products_go_straight_into_the_result(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[str] = []
    for name in ("add_product", "add_rows"):
        plain: Callable[..., None] = getattr(Sum, name)

        def noted(
            self: Sum, *args: Tensor, name: str = name, plain: Callable[..., None] = plain
        ) -> None:
            added.append(name)
            plain(self, *args)

        monkeypatch.setattr(Sum, name, noted)
    operator = Hessian(problem)
    _ = operator @ torch.randn(operator.shape[0]).double()
    assert {"add_product", "add_rows"} <= set(added)


def test_a_parameter_that_the_loss_does_not_know_gets_zeros(problem: Problem) -> None:
    group = parameter_groups(problem.model, "tensor")["idle.weight"]
    both = merge("both", [group, parameter_groups(problem.model, "tensor")["table"]])
    graph = BatchGraph(problem, next(iter(problem.plan.passes)), both.parameters, split=False)
    vectors = {name: torch.randn(1, *p.shape).double() for name, p in graph.parameters.items()}
    into = {name: torch.full_like(p, torch.nan) for name, p in graph.parameters.items()}
    found = graph.full(
        vectors, both.parameters, {name: Sum(t, fresh=True) for name, t in into.items()}
    )
    assert not found
    assert not into["idle.weight"].any()
    assert torch.isfinite(into["table"]).all()
    assert into["table"].any()


def test_marks_are_gone_afterwards_whatever_happens() -> None:
    own = Sum(torch.zeros(2), fresh=False)

    def breaks() -> None:
        with adding({1: own, 2: None}):
            assert sum_of(1) is own
            assert not wanted(2)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        breaks()
    assert sum_of(1) is None
    assert wanted(2)


def test_threads_do_not_mix_their_products(problem: Problem) -> None:
    operator = Hessian(problem)
    vectors = torch.randn(8, operator.shape[0]).double()
    expected = [operator @ vector for vector in vectors]
    found: dict[int, Tensor] = {}

    def multiply(number: int) -> None:
        for _ in range(5):
            found[number] = operator @ vectors[number]

    threads = [threading.Thread(target=multiply, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, one in enumerate(expected):
        torch.testing.assert_close(found[number], one)


class Mixed(nn.Module):
    """A layer in single precision before one in double."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        """Two logits a row."""
        return self.second(self.first(x).tanh().double())


def test_parameters_of_two_dtypes_have_one_product() -> None:
    torch.manual_seed(0)
    batch = [(torch.randn(3, WIDTH), torch.tensor([0, 1, 1]))]
    model = Mixed()
    operator = Hessian(Problem(model, batch, loss="classification"))
    vector = torch.randn(operator.shape[0])
    found = operator @ vector
    double = [(x.double(), y) for x, y in batch]
    exact = Hessian(Problem(model.double(), double, loss="classification")) @ vector.double()
    assert (found - exact).norm() < 1e-5 * exact.norm()


class InPlace(nn.Module):
    """What layers return is changed where it lies; one row alone, and a negative place of
    padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits."""
        x = F.embedding(input_ids, self.table.weight, -1)
        x *= 2
        x += self.table(torch.tensor(3))
        y = self.layer(x)
        y *= y.detach().tanh()
        return y.tanh().mean(1)


def test_outputs_that_are_changed_in_place_and_single_rows() -> None:
    torch.manual_seed(0)
    model = InPlace().double()
    problem = Problem(
        model, [(torch.tensor([[0, 6], [2, 6]]), torch.tensor([0, 1]))], loss="classification"
    )
    parameters = list(model.parameters())
    loss = F.cross_entropy(model(torch.tensor([[0, 6], [2, 6]])), torch.tensor([0, 1]))
    grads = torch.autograd.grad(loss, parameters, create_graph=True)
    vector = torch.randn(sum(p.numel() for p in parameters)).double()
    flat = torch.cat([g.flatten() for g in grads])
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(flat @ vector, parameters)])
    torch.testing.assert_close(Hessian(problem) @ vector, expected)


def test_a_graph_is_built_without_the_values_of_the_gradient() -> None:
    """Products of its construction: those of a forward pass, and of the gradient by each input."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    made = Problem(model, [(torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1]))], "classification")
    batch, names = next(iter(made.plan.passes)), tuple(made.parameters)
    with FlopCounterMode(display=False) as counter:
        BatchGraph(made, batch, names, split=False)
    inner, last = 2 * 5 * 8 * 8, 2 * 5 * 8 * 3
    # forward: both inner layers and the last; backward: all inputs, also that of the first layer
    assert counter.get_total_flops() == 2 * (2 * inner + last)


class InnerStep(nn.Module):
    """An embedding moved by a gradient of its own, as meta-learning moves weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Tensor) -> Tensor:
        weight = self.table.weight
        with torch.enable_grad():
            weight = weight if weight.requires_grad else weight.detach().requires_grad_()
            inner = (F.embedding(input_ids, weight).sin() ** 2).sum()
            (gradient,) = torch.autograd.grad(inner, weight, create_graph=True)
        return self.out((weight - 0.1 * gradient)[input_ids].mean(1))


def test_a_table_that_its_own_gradient_moves_has_the_right_hessian() -> None:
    """The model takes one of the two derivatives that the closed form has."""
    torch.manual_seed(0)
    rows = torch.tensor([[0, 1, 5, 5], [2, 5, 1, 1], [3, 4, 6, 0]])
    made = Problem(InnerStep().double(), [(rows, torch.tensor([1, 2, 0]))], "classification")
    torch.testing.assert_close(Hessian(made).dense(), dense(made), rtol=1e-10, atol=1e-12)
