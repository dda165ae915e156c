"""The interval of the largest over the smallest norm, with real probes and the dense Hessian as the
truth."""

import math

import pytest
import torch
from torch import Tensor, nn

from hessblocks.curvature import column_squares, custom_groups, heterogeneity
from tests.curvature.cases import Case
from tests.curvature.oracle import dense
from tests.linalg.coverage import LEVELS

BRANCHES, SEEDS, FEW = 6, 100, 50
WIDTH = 5


class Branches(nn.Module):
    """Small networks side by side, each with its own outputs, so that each owns a block of the
    Hessian."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ParameterList(
            torch.randn(WIDTH, WIDTH, dtype=torch.float64) for _ in range(BRANCHES)
        )
        self.sizes = torch.ones(BRANCHES, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = [
            size * torch.tanh(inputs @ inner).sum(dim=1, keepdim=True)
            for size, inner in zip(self.sizes, self.inner, strict=True)
        ]
        return torch.cat(outputs, dim=1)


def case_of(decades: float) -> tuple[Case, float]:
    """Branches whose norms of H are spread evenly over so many decades, and the true ratio."""
    inputs = torch.randn(4, WIDTH, dtype=torch.float64)
    model = Branches()
    case = Case(
        model=model,
        batches=[(inputs, torch.zeros(4, BRANCHES, dtype=torch.float64))],
        loss="regression",
    )
    wanted = torch.logspace(0, decades, BRANCHES, dtype=torch.float64)
    model.sizes = (wanted / norms(case)).sqrt()  # the targets are 0, so H grows with the square
    truth = norms(case)
    assert torch.allclose(truth, wanted)
    return case, float(truth.max() / truth.min())


def groups_of(case: Case) -> dict[str, object]:
    return custom_groups(case.model, {str(i): f"inner.{i}" for i in range(BRANCHES)})


def norms(case: Case) -> Tensor:
    matrices = dense(case)
    blocks = [matrices.block("full", one, one) for one in groups_of(case).values()]
    return torch.stack([torch.linalg.matrix_norm(block) for block in blocks])


# eight seconds each with all seeds; the case of every day has half of them
@pytest.mark.parametrize(
    ("decades", "probes"),
    [
        pytest.param(decades, probes, marks=[pytest.mark.slow] * ((decades, probes) != (0, 8)))
        for decades in (0, 1, 4)
        for probes in (8, 16)
    ],
)
def test_the_interval_holds_the_ratio_of_the_dense_hessian(decades: float, probes: int) -> None:
    case, truth = case_of(decades)
    problem, groups = case.problem, groups_of(case)
    held, plain = 0, dict.fromkeys(LEVELS, 0)
    seeds = FEW if (decades, probes) == (0, 8) else SEEDS
    for seed in range(seeds):
        found = {
            name: column_squares(
                problem, groups, name, rows=[name], parts=["full"], probes=probes, seed=seed
            ).norm("full", name)
            for name in groups
        }
        ratio = heterogeneity(found)
        held += ratio.low <= truth * (1 + 1e-9) and truth <= ratio.high * (1 + 1e-9)
        ends = found[ratio.largest], found[ratio.smallest]
        off = math.log(ends[0].value / ends[1].value / truth)
        error = math.hypot(*(end.relative_error for end in ends))
        for width in LEVELS:
            plain[width] += abs(off) <= width * error
    assert held >= LEVELS[2] * seeds
    if decades == 0:
        assert (
            plain[1] < LEVELS[1] * seeds
        )  # what the ratio of the estimates as they are would hold
