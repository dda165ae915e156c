"""Measure a product of H at the size and vocabulary of GPT-2 small: time and peak memory.

Run `python -m benchmarks vocabulary`. GPT-2 small with random weights (124M parameters, 50,257
words) on 1 x 512 tokens, float32, one thread, all parameters. Product and gradient take turns in
one run; the graph that products replay is built before. Peak memory is that of a fresh process
each, libraries, model, vector and product included, and beside it what is left without libraries,
model and vector.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks._timing import alternated, kept
from benchmarks.curvature_products import everything, gradient, kilobytes
from hessblocks.curvature import Functional, Hessian, OuterProduct, Problem

TOKENS = 512
KINDS = {"Hessian": Hessian, "OuterProduct": OuterProduct, "Functional": Functional}
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Lets glibc give back what is freed, so that what is held is measured."""


def main(rounds: int = 3) -> dict[str, Any]:
    """Measure every figure, printing a line for each."""
    peaks = {
        name: {kind: in_process(kind, environment) for kind in ("gradient", "Hessian")}
        for name, environment in (("as it is", {}), ("freed memory returned", RETURNED))
    }
    for name, found in peaks.items():
        for kind, figures in found.items():
            print(
                f"{kind}, peak memory, {name}: {figures['peak'] / 1e9:.2f} GB, "
                f"{figures['added'] / 1e9:.2f} GB of it besides libraries, model and vector"
            )
    return {"threads": 1, "tokens": TOKENS, "memory (bytes)": peaks, "time": times(rounds)}


def gpt2_small() -> tuple[nn.Module, Tensor]:
    """The model and a row of tokens."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    return model, torch.randint(0, model.config.vocab_size, (1, TOKENS))


def times(rounds: int) -> dict[str, float]:
    """Processor seconds of a gradient, and products in gradients."""
    model, ids = gpt2_small()
    group = everything(model)
    vector = torch.randn(group.size)
    operator = kept(Hessian(Problem(model, ids), group))
    sides = {"gradient": gradient(model, ids), "Hessian": lambda: operator @ vector}
    seconds = alternated(sides, rounds, processor=True)
    ratio = seconds["Hessian"] / seconds["gradient"]
    print(f"Hessian: {ratio:.2f} gradients (a gradient: {seconds['gradient']:.1f} s)")
    return {
        "gradient (s)": seconds["gradient"],
        "Hessian (s)": seconds["Hessian"],
        "Hessian": ratio,
    }


def in_process(kind: str, environment: dict[str, str]) -> dict[str, int]:
    """What `peak` prints in a process of its own."""
    output = subprocess.run(
        [sys.executable, "-c", f"from benchmarks.vocabulary import peak; peak({kind!r})"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    ).stdout
    found: dict[str, int] = json.loads(output)
    return found


def peak(kind: str) -> None:
    """Print the peak memory of one gradient or product, planning included (Linux)."""
    model, ids = gpt2_small()
    group = everything(model)
    vector = torch.randn(group.size)
    before = kilobytes("VmRSS")
    if kind == "gradient":
        gradient(model, ids)()
    else:
        _ = KINDS[kind](Problem(model, ids), group) @ vector
    after = kilobytes("VmHWM")
    print(json.dumps({"peak": after * 1024, "added": (after - before) * 1024}))
