"""The mode in which a model is differentiated twice is found once; later passes begin with it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessblocks as hb

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
PASSES: list[int] = []
"""One entry a pass; of this module, since what a model holds is put back after each."""


class Counted(nn.Sequential):
    """A network whose passes are counted, and whose logits may be lazy."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3))
        self[0].register_forward_hook(lambda *_: PASSES.append(1))

    def get_output_embeddings(self) -> nn.Module:
        return self[2]


class LooksAtLogits(Counted):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(x)
        with torch.no_grad():
            shift = found.mean(-1, keepdim=True)
        return found - shift


class Differentiates(Counted):
    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            found: Tensor = super().forward(x)
            (slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        return found + slope[:, :3]


class Writes(Counted):
    """Writes into a large buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(20_000))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        found: Tensor = super().forward(x)
        return found * self.seen[0]


def passes(problem: hb.Problem) -> int:
    PASSES.clear()
    with torch.enable_grad():
        leaves = {name: p.requires_grad_() for name, p in problem.parameters.items()}
        problem.forward(problem.batches[0], leaves)
    return len(PASSES)


@pytest.mark.parametrize(
    ("kind", "tried"), [(Counted, 1), (LooksAtLogits, 2), (Differentiates, 2), (Writes, 1)]
)
def test_later_passes_begin_with_the_mode_that_fits(kind: type[Counted], tried: int) -> None:
    problem = hb.Problem(kind(), [(X, Y)], loss="classification")
    assert [passes(problem) for _ in range(3)] == [tried, 1, 1]


@pytest.mark.parametrize("kind", [Counted, LooksAtLogits, Differentiates])
def test_logits_are_made_at_once_on_request(kind: type[Counted]) -> None:
    problem: Any = hb.Problem(kind(), [(X, Y)], loss="classification")
    readout = problem.without_lazy_logits().forward(problem.batches[0], problem.parameters)[0]
    assert readout.weight is None
    assert readout.hidden.shape == (6, 3)


@pytest.mark.parametrize("kind", [Counted, LooksAtLogits, Differentiates, Writes])
def test_every_mode_gives_the_same_products(kind: type[Counted]) -> None:
    problem = hb.Problem(kind().double(), [(X.double(), Y)], loss="classification")
    assert hb.check_derivatives(problem).verdict == "right"
