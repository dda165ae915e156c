"""Two processes find what one finds, with one all-reduce a product."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from functools import cache, partial
from multiprocessing import Process
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import hessblocks as hb
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.products.distributed import Processes
from hessblocks.curvature.products.operators import Hessian
from hessblocks.curvature.products.problem import Problem
from hessblocks.errors import ArgumentError
from tests.curvature.cases import CASES, stir
from tests.curvature.two_processes import error_of, found, in_two_processes, two_find
from tests.training.helpers import in_process_of_its_own

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(in_two_processes(two_find, tmp_path_factory.mktemp("processes")))


@cache
def alone() -> dict[str, Any]:
    torch.manual_seed(0)
    return found(CASES["pre-ln"](), None)


def test_two_processes_agree_with_one(together: dict[str, Any]) -> None:
    one, shared = alone(), together["batches"]
    assert shared["value"] == pytest.approx(one["value"], rel=1e-13)
    assert shared["norms"] == pytest.approx(one["norms"], rel=1e-12)
    for quantity, bound in (("sampled", 1e-9), ("drawn", 1e-6)):
        assert torch.allclose(
            torch.tensor(shared[quantity]), torch.tensor(one[quantity]), rtol=bound
        )
    for part in ("full", "functional", "empirical"):
        difference = torch.tensor(shared[part]) - torch.tensor(one[part])
        assert difference.abs().max() < 1e-6


def test_processes_that_were_given_different_things_are_refused(together: dict[str, Any]) -> None:
    assert "processes 0 and 1 hold different batches" in together["data"]
    assert "processes 0 and 1 hold different weights" in together["weights"]


def test_each_process_takes_a_share(together: dict[str, Any]) -> None:
    """Batches of two rows and one row: three passes over two processes."""
    assert together["passes"] == 2
    assert together["wrapped"] == together["batches"]["value"]


def test_a_product_costs_one_all_reduce(together: dict[str, Any]) -> None:
    assert together["reductions"] == 1


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


WAIT = 3
"""Timeout of the process group, in seconds."""


def _process(rank: int, folder: Path, wait: float) -> None:
    """Make a problem in the first process; the second joins the group and does nothing."""
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    # only now: on a loaded machine the second process may take longer to join
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=wait))
    (folder / f"joined {rank}").touch()
    if rank:
        time.sleep(600)
    case = CASES["pre-ln"]()
    message = error_of(lambda: Problem(case.model, case.batches, shard="batches"))
    (folder / "message").write_text(message, encoding="utf-8")
    os._exit(0)


def _two(folder: Path, wait: float) -> list[Process]:
    processes = [in_process_of_its_own(partial(_process, rank, folder, wait)) for rank in (0, 1)]
    while not all((folder / f"joined {rank}").exists() for rank in (0, 1)):
        assert all(process.exitcode in (None, 0) for process in processes)
        time.sleep(0.05)
    return processes


def test_a_process_whose_peer_does_not_answer_ends_with_a_sentence(tmp_path: Path) -> None:
    processes = _two(tmp_path, WAIT)
    processes[0].join(600)
    processes[1].kill()
    assert processes[0].exitcode == 0
    message = (tmp_path / "message").read_text(encoding="utf-8")
    assert "another process has ended, or has not answered within the timeout" in message


def test_a_process_that_waits_for_its_peer_ends_at_sigterm(tmp_path: Path) -> None:
    processes = _two(tmp_path, 600)
    time.sleep(1)  # until it waits; a signal that comes sooner ends it, too
    processes[0].terminate()
    processes[0].join(300)  # half of the group's timeout
    processes[1].kill()
    assert processes[0].exitcode == -signal.SIGTERM


def test_samples_of_prices_are_not_divided_among_processes(together: dict[str, Any]) -> None:
    assert "leave shard out" in together["prices"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_shares_of_the_processes_are_all_passes_once(count: int) -> None:
    passes = list(range(7))
    shares = [Processes(shard="batches", rank=rank, count=count) for rank in range(count)]
    assert sorted(p for each in shares for p in passes[each.turns]) == passes
    assert [passes[each.turns] for each in shares] == shares[0].shares(passes)
    assert passes[Processes(rank=0, count=count).turns] == passes  # of a sharded model


def test_other_processes_are_told_of_any_error() -> None:
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
