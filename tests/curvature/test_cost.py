"""What norms and maps cost: said before they start, chosen by minutes, and only what is read is
computed."""

import logging
from typing import Any

import pytest
import torch

from hessblocks.curvature import map as maps
from hessblocks.curvature.cost import BLOCKS, Cost
from hessblocks.curvature.frobenius_norms import group_norms
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.map import curvature_map
from hessblocks.errors import ArgumentError
from tests.curvature.cases import CASES

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


@pytest.mark.slow
def test_a_triangle_reads_each_block_once_and_a_diagonal_only_own_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    case = CASES["gpt2"]()
    groups = parameter_groups(case.model)
    asked: dict[str, list[str]] = {}
    real = maps.column_squares

    def noted(problem: Any, given: Any, name: str, rows: list[str], *options: Any) -> Any:
        asked[name] = list(rows)
        return real(problem, given, name, rows, *options)

    monkeypatch.setattr(maps, "column_squares", noted)
    found = {
        blocks: curvature_map(case.problem, groups, probes=4, blocks=blocks, seed=2)
        for blocks in BLOCKS
    }
    names = list(groups)
    assert asked == {name: [name] for name in names}
    everything, triangle, diagonal = found.values()
    assert set(triangle.table) == set(everything.table)
    assert set(diagonal.table) == {(name, name) for name in names}
    for name in names:
        own = everything.table[name, name]
        for other in (triangle, diagonal):
            assert other.table[name, name].value == pytest.approx(own.value, rel=1e-9)
    assert triangle.table == {(b, a): cell for (a, b), cell in triangle.table.items()}
    cell = triangle.table[names[0], names[-1]]
    assert cell.method == "exact" or cell.probes == 4
    assert diagonal.off_diagonal_share is None
    both = everything.off_diagonal_share, triangle.off_diagonal_share
    assert both[0] is not None
    assert both[1] is not None
    apart = abs(both[0].value - both[1].value)
    assert apart < 4 * (both[0].standard_error + both[1].standard_error)
    assert diagonal.heterogeneity == everything.heterogeneity or diagonal.heterogeneity.ratio.value
    diagonal.plot()


def test_a_triangle_of_exact_columns_is_exact() -> None:
    torch.manual_seed(0)
    case = CASES["regression"]()
    groups = parameter_groups(case.model)
    all_blocks = curvature_map(case.problem, groups, probes=10_000)
    triangle = curvature_map(case.problem, groups, probes=10_000, blocks="triangle")
    for cell, estimate in triangle.table.items():
        assert estimate.method == "exact"
        assert estimate.value == pytest.approx(all_blocks.table[cell].value, rel=1e-9, abs=1e-14)
    assert triangle.off_diagonal_share is not None
    assert all_blocks.off_diagonal_share is not None
    assert triangle.off_diagonal_share.value == pytest.approx(all_blocks.off_diagonal_share.value)
    assert triangle.off_diagonal_share.method == "exact"


@pytest.mark.parametrize("method", ["probes", "sampled"])
def test_the_cost_is_told_before_the_work(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["gpt2"]()
    groups = parameter_groups(case.model)
    told: list[Cost] = []

    def tell(cost: Cost) -> None:
        told.append(cost)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        curvature_map(case.problem, groups, "outer", probes=4, method=method, tell=tell)
    with pytest.raises(KeyboardInterrupt):
        group_norms(case.problem, groups, parts=["outer"], probes=4, method=method, tell=tell)
    for cost in told:
        assert cost.method == method
        assert cost.groups == len(groups)
        products = sum(min(4, group.size) for group in groups.values())
        assert cost.products == (16 if method == "sampled" else products)
        assert 0.4 * cost.products <= cost.gradients <= cost.products
        assert cost.bytes > 0
        assert f"{cost.products} products, about" in str(cost)


def test_the_cost_is_in_the_log_where_that_is_read(caplog: pytest.LogCaptureFixture) -> None:
    case = CASES["regression"]()
    groups = parameter_groups(case.model)
    curvature_map(case.problem, groups, probes=4)
    assert not caplog.records
    with caplog.at_level(logging.INFO, logger="hessblocks.curvature"):
        curvature_map(case.problem, groups, probes=4)
    (record,) = caplog.records
    assert "4 probes in each of 5 groups" in record.getMessage()


def test_unknown_ways_are_refused() -> None:
    case = CASES["regression"]()
    groups = parameter_groups(case.model)
    with pytest.raises(ArgumentError, match="method: 'sample' is unknown; did you mean 'sampled'"):
        curvature_map(case.problem, groups, method="sample")
    with pytest.raises(ArgumentError, match="blocks: 'diag' is unknown"):
        curvature_map(case.problem, groups, blocks="diag")  # type: ignore[arg-type]
