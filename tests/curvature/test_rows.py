"""A batch is cut into rows only where each row gives alone what it gives beside another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import hessblocks as hb
from hessblocks.curvature.products import passes
from hessblocks.errors import ArgumentError
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


class Answers(nn.Linear):
    """Answers for some of the rows, then answers more."""

    def __init__(self, some: slice, more: int = 0) -> None:
        super().__init__(8, 3)
        self.some, self.more = some, more

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(torch.cat([x[self.some], x[: self.more * (len(x) - 1)]]))
        return out


def entries(rows: int, bias: Tensor) -> dict[str, Any]:
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (rows, 5))
    return {"x": torch.randn(rows, 5, 8).double(), "bias": bias, "labels": labels}


def product(model: nn.Module, data: Any) -> Tensor:
    operator = hb.Hessian(hb.Problem(model, data, "classification"))
    found: Tensor = operator @ torch.ones(operator.shape[0]).double()
    return found


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are passed through the model one by one."""
    monkeypatch.setattr(passes, "LARGE", 1)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("rows", [2, HEADS, 6])
def test_an_entry_that_is_no_rows_is_refused_or_does_no_harm(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stir(Biased())
    bias = 3 * torch.randn(HEADS, 5, 5).double()
    with monkeypatch.context() as whole:
        whole.setattr(passes, "LARGE", 1 << 36)
        expected = product(model, [entries(rows, bias)])
    assert torch.allclose(product(model, [entries(rows, bias[None])]), expected)
    if rows == HEADS:
        with pytest.raises(ArgumentError, match=r"batches: batch 0 .*an axis of one in front"):
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
    ],
)
def test_a_model_that_mixes_rows_is_refused(model: nn.Module, what: str) -> None:
    data = (torch.randn(4, 8).double(), torch.randint(0, 3, (4,)))
    with pytest.raises(ArgumentError, match=f"batches: batch 0 .* in pieces of 1 row {what}"):
        product(stir(model), [data])


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
    monkeypatch.setattr(passes, "LARGE", 1 << 36)
    assert torch.allclose(cut, product(model, data))
