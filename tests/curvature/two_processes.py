"""What two processes find, for test_processes.py, and how tests start two."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hessblocks.bill.bill import price
from hessblocks.curvature.frobenius_norms import group_norms
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.map import curvature_map
from hessblocks.curvature.products.operators import Functional, Hessian
from hessblocks.curvature.products.problem import Problem
from hessblocks.curvature.sampled.fisher import EmpiricalFisher, MonteCarloFisher
from hessblocks.errors import HessblocksError
from tests.curvature.cases import CASES, Case
from tests.training.helpers import in_process_of_its_own

GROUP = "layers.0.attention.value"


def found(case: Case, shard: str | None) -> dict[str, Any]:
    """Numbers that must not depend on how many processes there are."""
    groups = parameter_groups(case.model)
    problem = Problem(case.model, case.batches, case.loss, shard=shard)
    norms = group_norms(problem, {GROUP: groups[GROUP]}, probes=5)[GROUP]
    some = {name: groups[name] for name in (GROUP, "layers.1.mlp.in", "final.norm")}
    sampled = curvature_map(problem, some, "outer", probes=4, method="sampled")
    return {
        "sampled": [[cell.value, cell.standard_error] for cell in sampled.table.values()],
        "value": problem.value(),
        "full": Hessian(problem, groups[GROUP]).dense().tolist(),
        "functional": Functional(problem, groups[GROUP]).dense().tolist(),
        "empirical": EmpiricalFisher(problem, groups[GROUP]).dense().tolist(),
        "drawn": MonteCarloFisher(problem, groups[GROUP], samples=2).dense().tolist(),
        "norms": {part: estimate.value for part, estimate in norms.items()},
    }


def reductions(case: Case) -> int:
    """All-reduces of one product with several vectors."""
    group = parameter_groups(case.model)[GROUP]
    operator = Hessian(Problem(case.model, case.batches, case.loss, shard="batches"), group)
    columns = torch.ones(group.size, 3, dtype=torch.float64)
    _ = operator @ columns
    with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduce:
        _ = operator @ columns
    return reduce.call_count


def error_of(action: Any) -> str:
    try:
        action()
    except HessblocksError as error:
        return str(error)
    return "none"


def one_fails(case: Case) -> str:
    """What each process sees when only the first one's rows are not finite."""
    case.model.register_forward_hook(
        lambda module, inputs, output: (
            output.logits.mul_(torch.nan) if dist.get_rank() == 0 else None
        )
    )
    group = parameter_groups(case.model)[GROUP]
    problem = Problem(case.model, case.batches, case.loss, shard="batches")
    return error_of(lambda: Hessian(problem, group).dense())


def leave() -> None:
    """End this process once all are done, without the interpreter's exit, where torch waits or
    aborts now and then.

    A wrapped model that outlives its group waits, with the interpreter's lock, for a thread that
    wants that lock; threads of a mesh's own groups abort the exit.
    """
    dist.barrier()
    os._exit(0)


def two_find() -> dict[str, Any]:
    """Everything that is compared with one process."""
    case = CASES["pre-ln"]()
    wrapped = Case(model=DistributedDataParallel(case.model), batches=case.batches)
    problem = Problem(wrapped.model, case.batches, shard="batches")
    results = {
        "batches": found(case, "batches"),
        "wrapped": problem.value(),
        "passes": len(problem.plan.passes),
        "reductions": reductions(case),
    }
    rank = dist.get_rank()
    own = case.batches[:-1] if rank == 0 else case.batches[-1:]
    results["data"] = error_of(lambda: Problem(case.model, own, shard="batches"))
    other = CASES["pre-ln"]()
    if rank:
        with torch.no_grad():
            next(other.model.parameters()).mul_(2)
    results["weights"] = error_of(lambda: Problem(other.model, case.batches, shard="batches"))
    failures = [None, None]
    dist.all_gather_object(failures, one_fails(CASES["pre-ln"]()))
    results["failures"] = failures
    results["prices"] = error_of(
        lambda: price(problem, {"none": {next(iter(problem.parameters)): torch.zeros_like}})
    )
    return results


def in_two_processes(work: Callable[[], Any], folder: Path) -> Any:
    """Do the work in two forked processes, which need no time to import anything.

    Returns:
        What the first one finds, by way of JSON.
    """
    out = folder / "found.json"

    def one(rank: int) -> None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        meeting = f"file://{folder / 'meeting'}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
        torch.manual_seed(0)
        found = work()
        if rank == 0:
            out.write_text(json.dumps(found), encoding="utf-8")
        leave()

    processes = [in_process_of_its_own(partial(one, rank)) for rank in (0, 1)]
    left = {process.sentinel for process in processes}
    while left and all(process.exitcode in (None, 0) for process in processes):
        ended = wait(list(left), timeout=900)
        assert ended
        left -= set(ended)
        for process in processes:
            process.join(0)
    failed = [process.exitcode for process in processes if process.exitcode]
    for process in processes:
        process.kill()  # one whose peer has failed waits for it
        process.join()
    assert not failed
    return json.loads(out.read_text(encoding="utf-8"))
