"""A batch is cut into rows only where each row gives alone what it gives beside another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import hessblocks as hb
from hessblocks.curvature.products import passes
from hessblocks.curvature.products.distributed import Processes
from hessblocks.errors import ArgumentError, RunError
from tests.curvature.cases import stir

HEADS = 4


class Biased(nn.Module):
    """Attention whose scores have a bias that comes with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        split = self.qkv(x).unflatten(-1, (3, HEADS, -1)).movedim(-2, 1)
        q, k, v = split.unbind(-2)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(len(x), -1, -1, -1))
        return self.head(mixed.movedim(1, 2).flatten(2))


class Centred(nn.Module):
    """Subtracts the mean over the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x - x.mean(0))
        return out


class Closed(nn.Module):
    """Adds the mean over the rows, or its square, behind a gate of 0."""

    def __init__(self, gate: float, power: int = 1, rows: bool = True) -> None:
        super().__init__()
        self.inner, self.power, self.rows = nn.Linear(8, 3), power, rows
        self.gate = nn.Parameter(torch.tensor([gate]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out + (self.gate * (out.mean(0) if self.rows else out)) ** self.power


class Crowded(nn.Module):
    """An expert with room for so many rows: what comes later gets a fifth."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.inner, self.room = nn.Linear(8, 3), room

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.where(torch.arange(len(x))[:, None] < self.room, 1.0, 0.2)
        out: Tensor = self.inner(x).tanh() * kept
        return out


class Neighbours(nn.Module):
    """Each row sees the one so many places before it, a little."""

    def __init__(self, distance: int, share: float = 0.5) -> None:
        super().__init__()
        self.inner, self.distance, self.share = nn.Linear(8, 3), distance, share

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return (out + self.share * out.roll(self.distance, 0)).tanh()


class Chosen(nn.Module):
    """Of the rows that ask for it, marked by their first entry, one alone gets through."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        asks = x[:, :1] > 0
        late = asks & (asks.cumsum(0) > 1)
        out: Tensor = self.inner(x).tanh()
        return out.masked_fill(late, 0)


class Tied(nn.Module):
    """Two experts and rows at a tie between them, which rounding decides: by how many rows there
    are."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 2, bias=False), nn.Linear(8, 6)
        with torch.no_grad():
            self.router.weight[1] = self.router.weight[0]

    def forward(self, x: Tensor) -> Tensor:
        rounding = torch.tensor([1e-9 * (len(x) % 2 - 0.5), 0.0])
        first = (self.router(x) + rounding).argmax(-1, keepdim=True)
        out: Tensor = self.experts(x).unflatten(-1, (2, 3))
        return out.gather(1, first[..., None].expand(-1, -1, 3))[:, 0]


class Answers(nn.Linear):
    """Answers for some of the rows, then answers more."""

    def __init__(self, some: slice, more: int = 0) -> None:
        super().__init__(8, 3)
        self.some, self.more = some, more

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(torch.cat([x[self.some], x[: self.more * (len(x) - 1)]]))
        return out


class Twice(nn.Linear):
    """Answers twice where it is asked once."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if len(x) > 1 else torch.cat([x, x]))


def entries(rows: int, bias: Tensor) -> dict[str, Any]:
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (rows, 5))
    return {"x": torch.randn(rows, 5, 8).double(), "bias": bias, "labels": labels}


def product(model: nn.Module, data: Any) -> Tensor:
    """H times ones, by a plan, which cuts batches; a product alone takes them whole."""
    operator = hb.Hessian(hb.Problem(model, data, "classification"))
    with operator.kept():
        found: Tensor = operator @ torch.ones(operator.shape[0]).double()
    return found


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are passed through the model one by one."""
    monkeypatch.setattr(passes, "FULL_CPU_WORK", 1)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("rows", [2, HEADS, 6])
def test_an_entry_that_is_not_rows_is_refused_or_does_no_harm(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stir(Biased())
    bias = 3 * torch.randn(HEADS, 5, 5).double()
    with monkeypatch.context() as whole:
        whole.setattr(passes, "FULL_CPU_WORK", 1 << 36)
        expected = product(model, [entries(rows, bias)])
    assert torch.allclose(product(model, [entries(rows, bias[None])]), expected)
    if rows == HEADS:
        with pytest.raises(ArgumentError, match=r"batches: batch 0 .*a first axis of length 1"):
            product(model, [entries(rows, bias)])
    else:
        assert torch.allclose(product(model, [entries(rows, bias)]), expected)


@pytest.mark.usefixtures("one_by_one")
def test_two_heads_and_two_rows_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.curvature.test_rows.HEADS", 2)
    bias = 3 * torch.randn(2, 5, 5).double()
    with pytest.raises(ArgumentError, match=r"differ by .* of their norm"):
        product(stir(Biased()), [entries(2, bias)])


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Centred(), "differ by"),
        (Answers(slice(0, 1)), "give another number of outputs"),
        (Answers(slice(None), more=1), "give another number of outputs"),
        (Twice(8, 3), "give another number of outputs"),
    ],
)
def test_a_model_that_mixes_rows_is_refused(model: nn.Module, what: str) -> None:
    data = (torch.randn(4, 8).double(), torch.randint(0, 3, (4,)))
    with pytest.raises(ArgumentError, match=f"batches: batch 0 .* in pieces of 1 row {what}"):
        product(stir(model), [data])


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("gate", [0.0, 1e-9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_mixes_rows_behind_a_gate_of_zero_is_refused(
    gate: float, power: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    data = (torch.randn(4, 8).to(dtype), torch.randint(0, 3, (4,)))
    with pytest.raises(ArgumentError, match=r"batches: batch 0 .* differ by"):
        hb.Hessian(hb.Problem(Closed(gate, power).to(dtype), [data], "classification")).dense()
    alone = Closed(gate, power, rows=False).to(dtype)
    assert hb.Hessian(hb.Problem(alone, [data], "classification")).dense().norm() > 0


def points(rows: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(rows, 8).double(), torch.randint(0, 3, (rows,))


def sampled(problem: hb.Problem) -> Any:
    groups = hb.curvature.parameter_groups(problem.model)
    return hb.curvature.plan_samples(problem, groups, 8)


@pytest.mark.parametrize("most", [1, 3, 4])
@pytest.mark.parametrize(
    "model", [Crowded(room=4), Neighbours(2), Neighbours(5), Neighbours(3, share=1e-6)]
)
def test_rows_that_depend_on_each_other_at_any_distance_are_refused(
    model: nn.Module, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels = points(10)
    work = sum(p.numel() for p in model.parameters())
    monkeypatch.setattr(passes, "FULL_CPU_WORK", most * work)
    with pytest.raises(
        ArgumentError, match=rf"batch 0 .*pieces of {most} rows? differ by .* of their norm"
    ):
        product(stir(model), [(x, labels)])


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize(
    "question",
    [
        lambda problem: problem.value(),
        sampled,
        lambda problem: hb.curvature.EmpiricalFisher(problem) @ torch.ones(27).double(),
    ],
)
def test_gradients_are_cut_as_products_are(question: Callable[[hb.Problem], Any]) -> None:
    problem = hb.Problem(stir(Crowded(room=4)), [points(10)], "classification")
    with pytest.raises(ArgumentError, match="rows depend on each other"):
        question(problem)


@pytest.mark.usefixtures("one_by_one")
def test_rows_that_depend_on_each_other_in_a_later_batch_alone_are_refused() -> None:
    first, labels = points(4)
    second, third = -first.abs(), first.abs()
    for data, refused in ([second, second], False), ([second, second[:2], third[:3]], True):
        batches = [(x, labels[: len(x)]) for x in data]
        if refused:
            with pytest.raises(ArgumentError, match="batches: batch 2 "):
                product(stir(Chosen()), batches)
        else:
            assert product(stir(Chosen()), batches).isfinite().all()


@pytest.mark.usefixtures("one_by_one")
def test_one_large_row_hides_no_dependence() -> None:
    class Straight(Crowded):
        def forward(self, x: Tensor) -> Tensor:
            kept = torch.where(torch.arange(len(x))[:, None] < self.room, 1.0, 0.2)
            out: Tensor = self.inner(x) * kept
            return out

    x, _ = points(10)
    x[0] *= 1e9
    problem = hb.Problem(stir(Straight(room=4)), [(x, torch.zeros(10, 3).double())], "regression")
    with pytest.raises(ArgumentError, match="differ by"):
        problem.value()


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize(("rank", "error"), [(0, ArgumentError), (1, RunError)])
def test_all_processes_refuse_what_one_of_them_compares(
    rank: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def least(self: Processes, amount: int, device: torch.device) -> int:
        return -1 if amount in (0, -1) else amount  # what the process that compares says

    monkeypatch.setattr(Processes, "least", least)
    problem = hb.Problem(stir(Crowded(room=4)), [points(10)], "classification")
    problem.processes = Processes(shard="batches", rank=rank, count=2)
    with pytest.raises(error, match=r"rows depend on each other|another process failed"):
        _ = problem.plan


@pytest.mark.usefixtures("one_by_one")
def test_a_tie_that_rounding_breaks_is_not_dependence() -> None:
    model = Tied().double().eval()
    assert product(model, [points(6)]).isfinite().all()


@pytest.mark.usefixtures("one_by_one")
def test_classes_that_are_masked_hide_no_dependence() -> None:
    class Masked(Neighbours):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).index_fill(1, torch.tensor([0]), float("-inf"))

    x, labels = points(6)
    with pytest.raises(ArgumentError, match="differ by"):
        hb.Problem(stir(Masked(2)), [(x, labels.clamp(min=1))], "classification").value()


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_rounding_explains_is_not_dependence(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(64, 3)).to(dtype)
    x, labels = torch.randn(33, 64).to(dtype), torch.randint(0, 3, (33,))
    assert hb.Problem(model, [(x, labels)], "classification").value() > 0


def test_a_batch_that_does_not_fit_is_compared_by_as_many_rows_as_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, (x, labels) = stir(Neighbours(1)), points(12)
    seen: list[int] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    monkeypatch.setattr(passes, "FORWARD_ARRAYS", 1 << 40)
    monkeypatch.setattr(passes, "FULL_CPU_WORK", 3 * 27)
    with pytest.raises(ArgumentError, match="differ by"):
        product(model, [(x, labels)])
    assert max(seen) == 6


@pytest.mark.usefixtures("one_by_one")
def test_a_batch_is_compared_once_for_pieces_of_a_size() -> None:
    model, seen = stir(nn.Sequential(nn.Linear(8, 3))), list[int]()
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    problem = hb.Problem(model, [points(5)], "classification")
    for _ in range(2):
        sampled(problem)
        problem.value()
        _ = hb.Hessian(problem) @ torch.ones(27).double()
    assert seen.count(5) == 1


def test_a_model_that_mixes_rows_is_taken_whole_where_nothing_is_cut() -> None:
    model, same = stir(Centred()), nn.Sequential(nn.Linear(8, 3)).double()
    same[0].load_state_dict(model.inner.state_dict())
    x, labels = torch.randn(4, 8).double(), torch.randint(0, 3, (4,))
    assert torch.allclose(product(model, [(x, labels)]), product(same, [(x - x.mean(0), labels)]))


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("sizes", [(1, 4), (4, 1), (1, 1), (3, 2)])
def test_rows_that_do_not_depend_on_each_other_may_be_cut(
    sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stir(nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 3)))
    data = [(torch.randn(n, 8).double(), torch.randint(0, 3, (n,))) for n in sizes]
    cut = product(model, data)
    monkeypatch.setattr(passes, "FULL_CPU_WORK", 1 << 36)
    assert torch.allclose(cut, product(model, data))


def test_a_product_alone_of_a_model_that_mixes_rows_is_that_of_the_whole_batch() -> None:
    model, (x, labels) = stir(Centred()), points(5)
    operator = hb.Hessian(hb.Problem(model, [(x, labels)], "classification"))
    weights = dict(model.named_parameters())
    flat = torch.cat([p.detach().flatten() for p in weights.values()])

    def loss(vector: Tensor) -> Tensor:
        pieces = vector.split([p.numel() for p in weights.values()])
        named = {n: v.view_as(p) for (n, p), v in zip(weights.items(), pieces, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, named, (x,)), labels)

    dense = torch.autograd.functional.hessian(loss, flat)
    along = torch.ones(len(flat)).double()
    torch.testing.assert_close(operator @ along, dense @ along, rtol=1e-10, atol=1e-12)
