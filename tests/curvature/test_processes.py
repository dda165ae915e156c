"""Two processes find what one finds, with one all-reduce a product."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch

import hessblocks as hb
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.products.distributed import Processes
from hessblocks.curvature.products.operators import Hessian
from hessblocks.curvature.products.problem import Problem
from hessblocks.errors import ArgumentError
from tests.curvature.cases import CASES, stir
from tests.curvature.two_processes import found, in_two_processes, two_find

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(in_two_processes(two_find, tmp_path_factory.mktemp("processes")))


@cache
def alone() -> dict[str, Any]:
    torch.manual_seed(0)
    return found(CASES["pre-ln"](), None)


@pytest.mark.parametrize("shard", ["batches", "vectors", "own"])
def test_two_processes_find_what_one_finds(together: dict[str, Any], shard: str) -> None:
    one, shared = alone(), together[shard]
    assert shared["value"] == pytest.approx(one["value"], rel=1e-13)
    assert shared["norms"] == pytest.approx(one["norms"], rel=1e-12)
    sampled = torch.tensor(shared["sampled"]), torch.tensor(one["sampled"])
    if (
        shard == "own"
    ):  # each process has signs of its own, so that equal rows of two are not drawn alike
        assert not torch.allclose(*sampled)
        assert ((sampled[0] - sampled[1])[:, 0].abs() <= 5 * sampled[1][:, 1]).all()
    else:
        assert torch.allclose(*sampled, rtol=1e-9)
    drawn = torch.tensor(shared["drawn"]), torch.tensor(one["drawn"])
    assert torch.allclose(*drawn, rtol=1e-6) == (shard != "own")  # labels of its own, as signs are
    for part in ("full", "functional", "empirical"):
        difference = torch.tensor(shared[part]) - torch.tensor(one[part])
        assert difference.abs().max() < 1e-6


def test_processes_that_were_given_different_things_are_refused(together: dict[str, Any]) -> None:
    assert "processes 0 and 1 hold different batches" in together["data"]
    assert "shard='own'" in together["data"]
    assert "processes 0 and 1 hold different weights" in together["weights"]


def test_each_process_takes_a_share(together: dict[str, Any]) -> None:
    """Batches of two rows and one row: three passes over two processes."""
    assert together["passes"] == 2
    assert together["wrapped"] == together["batches"]["value"]


def test_a_product_costs_one_all_reduce(together: dict[str, Any]) -> None:
    assert together["reductions"] == {"batches": 1, "vectors": 1}


def test_no_process_waits_for_one_that_failed(together: dict[str, Any]) -> None:
    own, other = together["failures"]
    assert "the loss of batch 0" in own
    assert "another process failed" in other


def test_a_share_needs_processes() -> None:
    case = CASES["classification"]()
    with pytest.raises(ArgumentError, match="start with torchrun"):
        Problem(case.model, case.batches, case.loss, shard="batches")
    with pytest.raises(ArgumentError, match="did you mean 'batches'"):
        Problem(case.model, case.batches, case.loss, shard="batch")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_shares_of_the_processes_are_all_passes_once(count: int) -> None:
    passes = list(range(7))
    shares = [Processes(shard="batches", rank=rank, count=count) for rank in range(count)]
    assert sorted(p for each in shares for p in passes[each.turns]) == passes
    assert [passes[each.turns] for each in shares] == shares[0].shares(passes)
    assert passes[Processes(shard="vectors", rank=0, count=count).turns] == passes


def test_whatever_goes_wrong_the_other_processes_are_told() -> None:
    model = stir(hb.build("pre-ln", depth=1, width=4, heads=2, vocab_size=7, context=6))
    group = next(iter(parameter_groups(model).values()))
    problem = Problem(model, {"input_ids": torch.ones(2, 5, dtype=torch.long)})
    problem.processes = Processes(shard="batches", rank=0, count=1)
    with patch("torch.distributed.all_reduce") as reduce:
        operator = Hessian(problem, group)
        assert problem.plan
        next(iter(problem.plan.passes)).keywords["input_ids"][0, 3] = 99  # no such token
        with pytest.raises(ArgumentError, match="outside the model's vocabulary"):
            _ = operator @ torch.ones(group.size, 1, dtype=torch.float64)
    (told,) = reduce.call_args.args
    assert bool(told.isnan().all())
