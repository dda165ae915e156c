"""What would make a result unrepeatable is said, set aside or refused, and put back afterwards."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.losses import Readout
from hessblocks.curvature.products.operators import Hessian
from hessblocks.curvature.products.problem import Problem
from hessblocks.curvature.products.repeatability import RepeatabilityWarning, check_same
from hessblocks.errors import RunError
from tests.curvature.cases import stir


def network(*middle: nn.Module) -> nn.Module:
    return stir(nn.Sequential(nn.Linear(3, 4), *middle, nn.Linear(4, 2)))


def batch(rows: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3).double(), torch.randint(0, 2, (rows,))


def curvature(model: nn.Module, data: Any) -> Tensor:
    group = next(iter(parameter_groups(model).values()))
    return Hessian(Problem(model, data, "classification"), group).dense()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Dropout(0.5), r"dropout is switched off \(1 in training mode\)"),
        (nn.BatchNorm1d(4), r"batch norm uses its running statistics \(1 in training mode\)"),
    ],
)
def test_training_mode_is_named_set_aside_and_restored(module: nn.Module, message: str) -> None:
    model, data = network(module), batch()
    expected = curvature(model, [data])
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(RepeatabilityWarning, match=message):
        found = curvature(model, [data])
    assert torch.equal(found, expected)
    assert all(inner.training for inner in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Attended(nn.Module):
    """Dropout that is a number of another module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0]
        return y


class Remembered(nn.Module):
    """The same of a recurrent one."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(4, 4, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cells(x[:, None])[0][:, 0]
        return y


@pytest.mark.parametrize("kind", [Attended, Remembered])
def test_dropout_that_is_a_number_of_another_module_is_named(kind: type[nn.Module]) -> None:
    model, data = network(kind()), batch()
    expected = curvature(model.eval(), [data])
    with pytest.warns(RepeatabilityWarning, match=r"dropout is switched off \(1\.\w+ in training"):
        found = curvature(model.train(), [data])
    assert torch.equal(found, expected)


@pytest.mark.parametrize("settings", [{}, {"drop_last": True}])
def test_a_shuffling_loader_is_named_and_read_once(settings: dict[str, Any]) -> None:
    model, (x, y) = network(), batch(5)
    loader = DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True, **settings)
    with pytest.warns(RepeatabilityWarning, match=r"shuffles.*manual_seed"):
        problem = Problem(model, loader, "classification")
    operator = Hessian(problem, next(iter(parameter_groups(model).values())))
    assert torch.equal(operator.dense(), operator.dense())


@pytest.mark.parametrize(
    "settings", [{"shuffle": False}, {"shuffle": True, "generator": torch.Generator()}]
)
def test_a_loader_that_can_be_repeated_is_silent(settings: dict[str, Any]) -> None:
    x, y = batch()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Problem(network(), DataLoader(TensorDataset(x, y), **settings), "classification")
    assert [str(warning.message) for warning in said] == []


class Noisy(nn.Module):
    """Dropout that no mode switches off."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)


def test_a_model_that_is_random_in_evaluation_mode_is_refused() -> None:
    with pytest.raises(RunError, match="two passes over the same row differ"):
        curvature(network(Noisy()), [batch()])


@pytest.mark.parametrize("dropout", [lambda x: F.dropout(x, 0.5), nn.Dropout(0.5).double()])
def test_a_loss_that_is_random_is_refused(dropout: Any) -> None:
    def losses(outputs: Tensor, given: Any) -> Tensor:
        return F.cross_entropy(dropout(outputs), given[1], reduction="none")

    with pytest.raises(RunError, match=r"two calls of the callable .* differ.*dropout"):
        Problem(network(), batch(), losses).value()


class Trembling(nn.Module):
    """Adds a share of the largest logit on every second pass."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.inner, self.share, self.passes = nn.Linear(3, 2), share, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        logits = self.inner(x)
        return logits + self.share * (self.passes % 2) * logits.detach().abs().max()


@pytest.mark.parametrize("share", [0.0, 3e-5, 9e-5, 1.2e-4, 1e-3])
def test_a_change_above_a_ten_thousandth_is_not_rounding(share: float) -> None:
    logits = Trembling(share).double()
    x = torch.randn(1, 3).double()
    first, second = (Readout(hidden=logits(x).detach()) for _ in range(2))
    if share < 1e-4:
        check_same(first, second)
    else:
        with pytest.raises(RunError, match="two passes over the same row differ"):
            check_same(first, second)
