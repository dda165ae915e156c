"""Time products of H by context, and one attention layer beside torch's double backward pass.

Run `python -m benchmarks second_order_attention`; one thread. The model is a GPT-2 of 4 layers, 4
heads, width 256, vocabulary 1024 on one sequence, float32, random weights; the layer has 4 heads of
width 64 and is causal. Sides take turns; times are medians of processor time, memory is what a
fresh process adds, at its worst moment, to what it held before the product (building included).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks._timing import alternated, kept
from benchmarks.curvature_products import everything, gpt, gradient, kilobytes, slope
from hessblocks import second_order_attention
from hessblocks.curvature import Hessian, Problem

CONTEXTS = (512, 1024, 2048, 4096, 8192)
LONG = 4096
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def main(rounds: int = 3) -> dict[str, Any]:
    """Measure every figure, printing a line for each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return {
        "threads": 1,
        "short": short(rounds),
        "model": model(rounds),
        "layer": layer(rounds),
        "memory": memory(),
    }


def short(rounds: int, probes: int = 16) -> dict[str, float]:
    """Where tiles do not pay: GPT-2 4 x 128, 8 x 64 tokens, gradients a probe."""
    transformer = gpt()
    ids = torch.randint(0, 1024, (8, 64))
    group = everything(transformer)
    columns = torch.randn(group.size, probes)
    operator = kept(Hessian(Problem(transformer, ids), group))
    sides = {"gradient": gradient(transformer, ids), "product": lambda: operator @ columns}
    seconds = alternated(sides, rounds, processor=True)
    found = seconds["product"] / seconds["gradient"] / probes
    print(f"64 tokens of context, {probes} probes: a product is {found:.2f} gradients")
    return {"tokens": 64, "gradients a product": found}


def model(rounds: int) -> dict[str, Any]:
    """Gradients a product over the contexts, graphs held."""
    found = {}
    for tokens in CONTEXTS:
        operator, run, unit = product(tokens)
        sides = {"gradient": unit, "product": run}
        with operator.kept():
            seconds = alternated(sides, rounds if tokens <= LONG else 1, processor=True)
        ratio = seconds["product"] / seconds["gradient"]
        print(
            f"{tokens} tokens of context: gradient {seconds['gradient']:.2f} s, "
            f"product {seconds['product']:.2f} s, {ratio:.2f} gradients"
        )
        found[str(tokens)] = {**seconds, "gradients a product": ratio}
    return found


def product(tokens: int) -> tuple[Hessian, Callable[[], object], Callable[[], object]]:
    """H, its product with one vector, and a gradient."""
    transformer = gpt(256, tokens=tokens)
    ids = torch.randint(0, 1024, (1, tokens))
    group = everything(transformer)
    operator = Hessian(Problem(transformer, ids, memory_limit=1 << 40), group)
    vector = torch.randn(group.size)
    return operator, lambda: operator @ vector, gradient(transformer, ids)


def layer(rounds: int) -> dict[str, Any]:
    """Measure a double backward pass of one layer at 4096 tokens, by torch and by tiles."""
    sides = {name: twice(name, LONG) for name in ("torch", "tiles")}
    seconds = alternated(sides, rounds, processor=True)
    peaks = {name: fresh(f"layer_peak({name!r}, {LONG})") for name in sides}
    faster, smaller = (one["torch"] / one["tiles"] for one in (seconds, peaks))
    print(
        f"one layer, {LONG} tokens: {faster:.1f} times as fast as torch, 1/{smaller:.0f} of its "
        f"memory ({peaks['torch'] / 1e6:.0f} and {peaks['tiles'] / 1e6:.0f} MB)"
    )
    return {"seconds": seconds, "bytes": peaks, "faster": faster, "smaller": smaller}


def twice(name: str, tokens: int) -> Callable[[], object]:
    """The double backward pass of one layer, its graph held."""
    leaves = [torch.randn(1, 4, tokens, 64).requires_grad_() for _ in range(3)]
    with sdpa_kernel(SDPBackend.MATH):
        function = F.scaled_dot_product_attention if name == "torch" else second_order_attention
        out = function(*leaves, is_causal=True)
        cotangent = torch.randn_like(out).requires_grad_()
        first = torch.autograd.grad(out, leaves, cotangent, create_graph=True)
    vectors = [torch.randn_like(one) for one in first]
    wanted = [*leaves, cotangent]
    return lambda: torch.autograd.grad(first, wanted, vectors, retain_graph=True)


def memory() -> dict[str, Any]:
    """Bytes of a product of H over the contexts, and their power."""
    peaks = [fresh(f"product_peak({tokens})") for tokens in CONTEXTS]
    power = slope(list(CONTEXTS), peaks)
    for tokens, peak in zip(CONTEXTS, peaks, strict=True):
        print(f"{tokens} tokens of context: a product adds {peak / 1e6:.0f} MB")
    print(f"memory grows with the power {power:.2f} of the context")
    return {"tokens": CONTEXTS, "bytes": peaks, "power": power}


def layer_peak(name: str, tokens: int) -> None:
    """Print the bytes that building and differentiating one layer adds."""
    torch.set_num_threads(1)
    twice(name, 32)()
    added(lambda: twice(name, tokens)())


def product_peak(tokens: int) -> None:
    """Print the bytes that a product of H adds, building included."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    product(64)[1]()
    transformer = gpt(256, tokens=tokens)
    ids = torch.randint(0, 1024, (1, tokens))
    group = everything(transformer)
    vector = torch.randn(group.size)
    added(lambda: Hessian(Problem(transformer, ids, memory_limit=1 << 40), group) @ vector)


def added(run: Callable[[], object]) -> None:
    """Print the bytes that a run adds to this process at its worst moment (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = kilobytes("VmRSS")
    run()
    print((kilobytes("VmHWM") - before) * 1024)


def fresh(call: str) -> float:
    """Run one of these functions in a process that returns freed memory; return what it prints."""
    output = subprocess.run(
        [sys.executable, "-c", f"from benchmarks import second_order_attention as b; b.{call}"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
    ).stdout
    return float(json.loads(output))
