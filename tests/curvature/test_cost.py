"""What norms and maps cost: said before they start, chosen by minutes, and only what is read is
computed."""

import itertools
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
def test_a_diagonal_map_reads_only_own_blocks(
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
    everything, diagonal = found.values()
    assert set(everything.table) == set(itertools.product(names, repeat=2))
    assert set(diagonal.table) == {(name, name) for name in names}
    for name in names:
        own = everything.table[name, name]
        assert diagonal.table[name, name].value == pytest.approx(own.value, rel=1e-9)
    assert diagonal.off_diagonal_share is None
    assert everything.off_diagonal_share is not None
    assert diagonal.heterogeneity == everything.heterogeneity or diagonal.heterogeneity.ratio.value
    diagonal.plot()


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
