"""Products of a model that two processes share, against one process that holds it.

Run `python -m benchmarks sharded_products`. A GPT-2 of 8 layers, width 128, vocabulary 4,096 (2.2M
parameters) on 4 x 64 tokens, float64, one thread a process, gloo; the second process is started
here. Seconds are elapsed time of one product, the least of some; both processes need a core of
their own.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks._resident import Resident
from hessblocks.curvature import Hessian, Problem, parameter_groups, sharded
from hessblocks.curvature.groups import merge
from hessblocks.curvature.products import Block, own_products
from hessblocks.curvature.sharding import OwnEntries

ROUNDS = 5
COMMAND = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def main() -> dict[str, Any]:
    """Measure every figure, printing a line for each."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        subprocess.run(
            [sys.executable, *COMMAND, "-m", "benchmarks.sharded_products", str(out)], check=True
        )
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    for name, value in found.items():
        print(f"{name}: {value:.3g}")
    return found


def measured() -> dict[str, float]:
    """Error, share and seconds; for one of two processes."""
    torch.manual_seed(0)
    sizes = {"n_embd": 128, "n_head": 4, "vocab_size": 4096, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(n_layer=8, bos_token_id=0, eos_token_id=0, **sizes))
    model = model.double().eval()
    batch = {"input_ids": torch.randint(0, sizes["vocab_size"], (4, 64))}
    group = merge("everything", list(parameter_groups(model, "tensor").values()))
    vector = torch.randn(1, group.size, dtype=torch.float64)
    one = Problem(copy.deepcopy(model), batch)
    alone = Hessian(one, group)
    expected = alone @ vector[0]
    problem = Problem(sharded(model), batch)
    own = OwnEntries.of(group, problem.cuts)
    mine = own.read(vector)

    def product() -> torch.Tensor:
        block = Block(rows=own.group, columns=own.group, parts=["full"])
        return own_products(problem, mine, block)["full"]

    with Resident().counted() as resident:
        difference = product() - own.read(expected[None])
    squares = difference.square().sum()
    dist.all_reduce(squares)
    held = sum(weight.numel() for weight in problem.weights.values())
    seconds = {"one process": [], "two processes": []}
    for _ in range(ROUNDS):  # the second process waits while the first one works alone
        dist.barrier()
        if dist.get_rank() == 0:
            seconds["one process"].append(clocked(lambda: alone @ vector[0]))
        dist.barrier()
        seconds["two processes"].append(clocked(product))
    dist.barrier()
    return {
        "relative error": float(squares.sqrt() / expected.norm()),
        "share of the parameters held": held / group.size,
        "largest share of the parameters resident": (held + resident.peak) / group.size,
        "seconds, one process": min(seconds["one process"] or [0.0]),
        "seconds, two processes": min(seconds["two processes"]),
    }


def clocked(run: Any) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    figures = measured()
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(figures), encoding="utf-8")
    dist.destroy_process_group()
