"""Shaped attention by a fused kernel and a running mean against the building of its matrix.

Letters: B sequences, T tokens, D width, H heads, K head width.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._timing import alternated
from hessblocks.blocks import Attention, Context, Identity, SelfAttention, Shaping, fused_kernel

HEAPS = {
    "as glibc does": {},
    "kept": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)},
}
"""What happens to freed memory, and the variables of glibc that make it so."""


class MatrixAttention(nn.Module):
    """Shaped attention that builds αI + βA − γC, by the operations of the blocks' published code.

    That is eager attention of the GPT-2 kind: queries and keys from one fused matrix with a bias,
    scores divided by a 0-dimensional tensor, the causal mask and C and I sliced from three buffers,
    softmax, cast, β A + (α I − γ C) by broadcasting, dropout (of 0), product with the values, heads
    merged into a copy. No padding mask, values and projection the identity: nothing is done that
    its training run does not do.
    """

    below: Tensor
    uniform: Tensor
    diagonal: Tensor

    def __init__(self, like: SelfAttention, tokens: int) -> None:
        super().__init__()
        self.heads = like.heads
        weights = [like.query.weight.detach(), like.key.weight.detach()]  # type: ignore[union-attr]
        self.weight = nn.Parameter(torch.cat(weights).T.contiguous())
        self.bias = nn.Parameter(torch.zeros(self.weight.shape[1]))
        gains = (torch.ones(1, self.heads, 1, 1) for _ in range(3))
        self.alpha, self.beta, self.gamma = (nn.Parameter(gain) for gain in gains)
        self.dropout = nn.Dropout(0.0)
        below = torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril()
        self.register_buffer("below", below)
        self.register_buffer("uniform", below / below.sum(dim=-1, keepdim=True))
        self.register_buffer("diagonal", torch.eye(tokens)[None, None])

    def forward(self, x: Tensor) -> Tensor:
        """The sub-block, (B, T, D) to (B, T, D)."""
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        query, key = flat.view(*x.shape[:-1], -1).split(x.shape[-1], dim=2)
        return self.mix(query, key, x)

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(αI + βA − γC) V of every head, from and to (B, T, D)."""
        query, key, value = (split_heads(t, self.heads) for t in (query, key, value))
        scores = query @ key.transpose(-1, -2)
        scores = scores / torch.full([], value.shape[-1] ** 0.5, dtype=scores.dtype)
        tokens = key.shape[-2]
        lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
        scores = torch.where(self.below[:, :, :tokens, :tokens], scores, lowest)
        shaped = self.beta * scores.softmax(dim=-1).type(value.dtype)
        centre = self.gamma * self.uniform[:, :, :tokens, :tokens]
        shaped = shaped + (self.alpha * self.diagonal[:, :, :tokens, :tokens] - centre)
        mixed = self.dropout(shaped) @ value
        return mixed.permute(0, 2, 1, 3).contiguous().view(*mixed.shape[:1], tokens, -1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, D) to (B, H, T, K), a view."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


WIDTHS = (512, 768)
"""That of the CPU's ladder and the published one; heads of 64."""


def shaped_attention(rounds: int) -> dict[str, Any]:
    """Time both sides in turns, in one process for each way the C library treats freed memory.

    A buffer of the matrix is over 100 MB, for which glibc asks the system anew and pays a fault for
    every page of 4 KiB, unless its heap happens to hold so large a gap: what ran in a process
    before would decide. So nothing did, and the second figure, where all freed memory is kept, is
    the matrix's best.
    """
    results: dict[str, Any] = {}
    for width, (heap, variables) in itertools.product(WIDTHS, HEAPS.items()):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks._shaped_attention", str(rounds), str(width)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | variables,
        )
        figures = json.loads(done.stdout)
        results.setdefault(f"width {width}", {})[f"freed memory {heap}"] = figures
        for what, figure in figures.items():
            print(told(f"width {width}, freed memory {heap}, {what}", figure))
    return results


def told(what: str, figure: Mapping[str, Any]) -> str:
    """One line of what was measured."""
    return (
        f"shaped attention, {what}: {figure['ours']:.3f} s, building the matrix "
        f"{figure['matrix']:.3f} s: {figure['ratio']:.2f} times (page faults "
        f"{figure['page_faults']['ours']} and "
        f"{figure['page_faults']['matrix']}; arithmetic alone {figure['arithmetic_alone']:.3f} s, "
        f"so at most {figure['largest_ratio_by_arithmetic']:.2f} times)"
    )


def measured(rounds: int, width: int, tokens: int = 1024) -> dict[str, Any]:
    """Forward and backward at 4 sequences × tokens × width, heads of 64, identity values.

    The fused kernel alone, forward and backward on the same queries, keys and values, is timed
    beside: what ours cannot go below. So is the bare arithmetic of any kernel that keeps no matrix,
    at the rate of this machine's matrix product of the same shapes. Page faults are counted.
    """
    batch, heads = 4, width // 64
    torch.manual_seed(0)
    part = Attention(shaping=Shaping(), value=Identity(), projection=Identity())
    fast = SelfAttention(part, width, heads, heads, 1)
    matrix = MatrixAttention(fast, tokens)
    x, query, key = (torch.randn(batch, tokens, width, requires_grad=True) for _ in range(3))
    gradient = torch.randn(batch, tokens, width)

    def mixed() -> Tensor:
        q, k, v = (split_heads(t, heads) for t in (query, key, x))
        return fast._mix(q, k, v, v, Context()).transpose(1, 2).flatten(2)

    def kernel() -> Tensor:
        q, k, v = (split_heads(t, heads) for t in (query, key, x))
        attended = fused_kernel(fast, q, k, v, None, scale=fast.scale, causal=True)
        return attended.transpose(1, 2).flatten(2)

    mixing, sub_block = arithmetic(batch, tokens, width, heads)
    sides = {"ours": mixed, "matrix": lambda: matrix.mix(query, key, x), "fused_kernel": kernel}
    whole = {"ours": lambda: fast(x, Context()), "matrix": lambda: matrix(x)}
    return {
        "mixing of given queries, keys and values": shaped_figure(sides, gradient, rounds, mixing),
        "whole sub-block with its query and key matrices": shaped_figure(
            whole, gradient, rounds, sub_block
        ),
    }


def arithmetic(batch: int, tokens: int, width: int, heads: int) -> tuple[float, float]:
    """Bound the seconds of forward and backward, mixing and sub-block, by this machine's rate.

    Causal attention without a stored matrix has 7 products of tokens × tokens × width a sequence (2
    forward, 5 backward, scores recomputed), half of each masked; queries and keys are 3 products of
    tokens × width × 2 widths (1 forward, 2 backward).
    """
    shape = (batch * heads, tokens, width // heads)
    left, right = torch.randn(shape), torch.randn(shape).transpose(1, 2)
    square = torch.randn(batch * tokens, width), torch.randn(width, 2 * width)
    scores, flat = torch.empty(*shape[:2], tokens), torch.empty(batch * tokens, 2 * width)
    seconds = alternated(
        {
            "scores": lambda: torch.bmm(left, right, out=scores),
            "projection": lambda: torch.mm(*square, out=flat),
        },
        9,
    )
    mixing = 7 / 2 * seconds["scores"]
    return mixing, mixing + 3 * seconds["projection"]


def shaped_figure(
    sides: Mapping[str, Callable[[], Tensor]], gradient: Tensor, rounds: int, arithmetic: float
) -> dict[str, Any]:
    """Time forward and backward of every side; return their ratio, its limit and difference."""
    steps = {name: lambda run=run: run().backward(gradient) for name, run in sides.items()}
    seconds = alternated(steps, rounds)
    faults = {name: page_faults(steps[name]) for name in ("ours", "matrix")}
    with torch.no_grad():
        error = float((sides["ours"]() - sides["matrix"]()).abs().max())
    return {
        **seconds,
        "ratio": seconds["matrix"] / seconds["ours"],
        "page_faults": faults,
        "largest_difference": error,
        "arithmetic_alone": arithmetic,
        "largest_ratio_by_arithmetic": seconds["matrix"] / arithmetic,
    }


def page_faults(run: Callable[[], object]) -> int:
    """Pages of memory that one call asks the system for."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(json.dumps(measured(rounds=int(sys.argv[1]), width=int(sys.argv[2]))))
