"""Measure the blocks: steps beside GPT-2 and pre-ln, shaped attention beside its matrix.

Run `python -m benchmarks blocks`. The sides of a figure alternate in one run and are given as
medians; the ratio of their FLOPs, the limit of what removed matrices can gain, stands beside.
Letters: B sequences, T tokens, H heads, K head width.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from benchmarks._shaped_attention import shaped_attention
from benchmarks._timing import alternated
from hessblocks.drawing import plot
from hessblocks.figures import Panel, Series
from hessblocks.storage import atomic_path

THREADS = 2
LADDER = ("gpt2", "pre-ln", "parallel", "sas", "sas-p", "sas-p-no-norm")
CONTEXTS = (512, 1024, 2048, 4096, 8192)
FIGURE = Path(__file__).parent / "results" / "blocks_memory.png"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A model and its batches."""

    depth: int = 6
    """Layers."""
    width: int = 512
    """Entries of a token's vector."""
    heads: int = 8
    """Attention heads."""
    vocab_size: int = 4096
    """Entries of the vocabulary."""
    context: int = 128
    """Tokens of a sequence."""
    batch: int = 8
    """Sequences of a step."""


def main() -> dict[str, Any]:
    """Measure every figure, printing a line for each."""
    torch.set_num_threads(THREADS)
    results: dict[str, Any] = {"threads": THREADS}
    results["training"] = ladder(Sizes(), rounds=15)
    results["shaped_attention"] = shaped_attention(rounds=9)
    results["memory"] = memory()
    return results


def ladder(sizes: Sizes, *, rounds: int) -> dict[str, Any]:
    """Tokens per second of training steps (forward, backward, AdamW) of every block in turn."""
    torch.manual_seed(0)
    tokens = torch.randint(sizes.vocab_size, (sizes.batch, sizes.context))
    models = {name: built(name, sizes).train() for name in LADDER}
    flops = {name: step_flops(model, tokens) for name, model in models.items()}
    steps = {name: training_step(model, tokens) for name, model in models.items()}
    seconds = alternated(steps, rounds)
    results: dict[str, Any] = {"sizes": asdict(sizes)}
    for name, model in models.items():
        results[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "tokens_per_second": tokens.numel() / seconds[name],
            "flops_per_token": flops[name] / tokens.numel(),
            "speed_over_pre_ln": seconds["pre-ln"] / seconds[name],
            "limit_by_flops": flops["pre-ln"] / flops[name],
        }
        print(
            f"{name}, {sizes.depth} x {sizes.width}, context {sizes.context}, cpu: "
            f"{results[name]['tokens_per_second']:.0f} tokens/s, "
            f"{results[name]['parameters'] / 1e6:.1f}M parameters, "
            f"{results[name]['speed_over_pre_ln']:.3f} times pre-ln (limit by FLOPs "
            f"{results[name]['limit_by_flops']:.3f})"
        )
    ratio = seconds["gpt2"] / seconds["pre-ln"]
    results["pre_ln_over_gpt2"] = ratio
    print(
        f"pre-ln over Hugging Face GPT-2 (sdpa): {ratio:.3f} times "
        f"(limit by FLOPs {flops['gpt2'] / flops['pre-ln']:.3f})"
    )
    return results


def built(name: str, sizes: Sizes) -> nn.Module:
    """A preset, or GPT-2 of the same size with ReLU and without dropout."""
    if name != "gpt2":
        fields = {key: value for key, value in asdict(sizes).items() if key != "batch"}
        return hb.build(name, **fields)
    config = GPT2Config(
        n_layer=sizes.depth,
        n_embd=sizes.width,
        n_head=sizes.heads,
        vocab_size=sizes.vocab_size,
        n_positions=sizes.context,
        activation_function="relu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    return GPT2LMHeadModel(config)


def training_step(model: nn.Module, tokens: Tensor) -> Callable[[], None]:
    """Forward, backward and AdamW on one batch."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimiser.step()

    return step


def step_flops(model: nn.Module, tokens: Tensor) -> int:
    """Floating-point operations of matrix products, forward and backward, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        model(tokens, labels=tokens).loss.backward()
    model.zero_grad()
    return counter.get_total_flops()


def memory() -> dict[str, Any]:
    """Peak memory of a training step of sas-p over the context, each in a process of its own."""
    peaks = {}
    for context in CONTEXTS:
        code = f"from benchmarks.blocks import print_peak as run; run({context})"
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        peaks[context] = json.loads(done.stdout)
    growth = peaks[CONTEXTS[-1]] / peaks[CONTEXTS[-2]]
    print(
        "sas-p, 4 x 256, one sequence, memory of forward and backward: "
        + ", ".join(f"{context}: {peak / 1e6:.0f} MB" for context, peak in peaks.items())
        + f"; {growth:.2f} times from {CONTEXTS[-2]} to {CONTEXTS[-1]}"
    )
    draw_memory(peaks)
    return {"peak_bytes": peaks, "last_doubling": growth}


def print_peak(context: int) -> None:
    """Print what a forward and backward pass adds to the process's memory at its peak, in bytes.

    Linux only: the peak is reset before, so that the imports do not hide it.
    """
    torch.set_num_threads(THREADS)
    model = hb.build("sas-p", depth=4, width=256, heads=4, vocab_size=256, context=context)
    short = torch.zeros(1, 16, dtype=torch.long)
    model(short, labels=short).loss.backward()
    tokens = torch.randint(256, (1, context))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _kilobytes("VmRSS")
    model(tokens, labels=tokens).loss.backward()
    print((_kilobytes("VmHWM") - before) * 1024)


def _kilobytes(entry: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(entry))


def draw_memory(peaks: dict[int, int]) -> None:
    """Peak memory over the context, with the line through the origin and the last point."""
    contexts, megabytes = tuple(map(float, peaks)), tuple(peak / 1e6 for peak in peaks.values())
    ends = (0.0, contexts[-1])
    panel = Panel(
        title="sas-p, 4 layers, width 256, one sequence, float32",
        x_label="context (tokens)",
        y_label="memory of forward and backward (MB)",
        series=(
            Series(name="measured, one process each", x=contexts, y=megabytes, line=False),
            Series(name="proportional", x=ends, y=(0.0, megabytes[-1]), guide=True),
        ),
    )
    with atomic_path(FIGURE) as path:
        plot(panel).savefig(path, format="png", dpi=150)


if __name__ == "__main__":
    main()
