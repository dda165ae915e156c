"""Compare closed-form attention curvature with autodiff and curvlinops: time, memory, growth.

Run `python -m benchmarks attention_hessian`. Both sides of a figure alternate in one run and are
given as medians. Letters: N tokens in all, D width, K head width.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from functools import partial
from operator import matmul
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import hessblocks as hb
from benchmarks._timing import alternated, processed
from hessblocks.conventions import IGNORED
from hessblocks.drawing import plot
from hessblocks.figures import Panel, Series
from hessblocks.storage import atomic_path
from hessblocks.theory import AttentionHessian
from hessblocks_studies.data import addition_batch
from hessblocks_studies.growth import addition_model
from tests.theory.autodiff import attention_output

THREADS = 2
PARTS = ("outer", "functional", "full")
FIGURE = Path(__file__).parent / "results" / "attention_hessian_cost.png"
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
ASYMPTOTIC = 512
"""Tokens from which on the fixed cost of a call no longer shows."""
ALL, LARGE = "all sizes", f"N >= {ASYMPTOTIC}"
"""Over what slopes are fitted."""
WIDTH, HEAD = 128, 64
THEORY = {"exact norm": "N² (d + k²)", "product": "N (d k + k²)"}


def main() -> dict[str, Any]:
    """Measure every figure, printing a line for each."""
    torch.set_num_threads(THREADS)
    results: dict[str, Any] = {"threads": THREADS}
    for width, rounds in ((16, 5), (32, 2)):
        results[f"whole_hessian_{width}"] = whole_hessian(width, rounds)
    results["figure_3a_point"] = figure_3a_point()
    results["gpt2_small"] = gpt2_small()
    results["memory"] = memory()
    results["cost"] = cost()
    return results


def whole_hessian(width: int, rounds: int) -> dict[str, float]:
    """The whole Hessian of one layer, 64 sequences of 18 tokens, float32."""
    torch.manual_seed(0)
    x, y = torch.randn(2, 64, 18, width)
    weights = torch.randn(3, width, width) / width**0.5

    def ours() -> Tensor:
        return hb.attention_hessian(x, *weights, target=y).dense()

    def loss(theta: Tensor) -> Tensor:
        query, key, value = theta.view(3, 1, width, width)
        named = {"query": query, "key": key, "value": value}
        return (attention_output({"x": x}, named) - y).square().mean()

    def theirs() -> Tensor:
        return torch.func.hessian(loss)(weights.flatten())

    expected = theirs()
    error = float((ours() - expected).norm() / expected.norm())
    seconds = alternated({"ours": ours, "torch.func.hessian": theirs}, rounds)
    ratio = seconds["torch.func.hessian"] / seconds["ours"]
    print(
        f"whole Hessian, {3 * width**2} parameters: {seconds['ours']:.4f} s, "
        f"torch.func.hessian {seconds['torch.func.hessian']:.2f} s: {ratio:.0f} times "
        f"(relative difference {error:.1e})"
    )
    return {**seconds, "ratio": ratio, "relative_difference": error}


def figure_3a_point(rounds: int = 5) -> dict[str, Any]:
    """Norms of H_o, H_f and H for query and value, one block of width 128 on 64 sums, float32.

    Processor time on one thread; with two, the elapsed time of a call of 50 ms depends on the other
    programs.
    """
    torch.set_num_threads(1)
    model = addition_model("softmax", layers=1, width=128, sigma=0.1, seed=0).float()
    batch = addition_batch(64)
    attention = model.model.layers[0].attention
    weights = {"query": attention.query.weight, "value": attention.value.weight}

    def ours() -> dict[str, float]:
        found = hb.exact_attention_curvature(model, batch)
        return {
            f"{group}, {part}": found.block(group, group, part).frobenius_norm()
            for group in weights
            for part in PARTS
        }

    def theirs() -> dict[str, float]:
        return {
            f"{group}, {part}": norm
            for group, weight in weights.items()
            for part, norm in estimated_norms(model, weight, batch).items()
        }

    exact, estimate = ours(), theirs()
    seconds = alternated({"ours": ours, "curvlinops": theirs}, rounds, processor=True)
    torch.set_num_threads(THREADS)
    ratio = seconds["curvlinops"] / seconds["ours"]
    worst = max(abs(estimate[name] / exact[name] - 1) for name in exact if exact[name] > 0)
    print(
        f"one point of figure 3a, six exact norms: {seconds['ours']:.3f} s, "
        f"curvlinops with 20 probes {seconds['curvlinops']:.2f} s: {ratio:.0f} times "
        f"(its estimates are off by up to {worst:.0%})"
    )
    return {**seconds, "ratio": ratio, "exact": exact, "curvlinops estimates": estimate}


def gpt2_small() -> dict[str, Any]:
    """Time exact norms of GPT-2 small's last query, value and projection, with all its words.

    Random weights, 511 labelled tokens, float32, in a process of its own for its peak memory.
    """
    code = (
        "import json, resource, time, torch, hessblocks as hb\n"
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        f"torch.set_num_threads({THREADS}); torch.manual_seed(0)\n"
        "model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0)).eval()\n"
        "batch = {'input_ids': torch.randint(0, 50257, (1, 512))}\n"
        "start, used = time.perf_counter(), time.process_time()\n"
        "found = hb.exact_attention_curvature(model, batch)\n"
        "norms = {f'{g}, {p}': found.block(g, g, p).frobenius_norm()\n"
        "         for g in ('query', 'value', 'projection') for p in ('outer', 'functional', "
        "'full')}\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(json.dumps({'seconds': time.perf_counter() - start,\n"
        "    'processor_seconds': time.process_time() - used, 'peak_gb': peak / 1e6, 'norms': "
        "norms}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    print(
        f"GPT-2 small, 50,257 words, 511 tokens, nine exact norms: {found['seconds']:.0f} s "
        f"({found['processor_seconds']:.0f} s of processor time), {found['peak_gb']:.1f} GB"
    )
    return found


def estimated_norms(
    model: nn.Module, weight: nn.Parameter, batch: dict[str, Tensor], probes: int = 20
) -> dict[str, float]:
    """The three norms by curvlinops, H_f as the difference of the other two."""
    from curvlinops import GGNLinearOperator, HessianLinearOperator, hutchinson_squared_fro

    kept = batch["labels"][:, 1:] != IGNORED

    class Answers(nn.Module):
        """Logits at the tokens before the answer's digits."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor) -> Tensor:
            return self.model(ids).logits[:, :-1][kept]

    data = [(batch["input_ids"], batch["labels"][:, 1:][kept])]
    options = {
        "check_deterministic": False,
        "num_data": int(kept.sum()),
        "batch_size_fn": lambda ids: int(kept.sum()),
    }
    arguments = (Answers(), nn.CrossEntropyLoss(), [weight], data)
    with sdpa_kernel(SDPBackend.MATH):
        hessian = HessianLinearOperator(*arguments, **options)
        outer = GGNLinearOperator(*arguments, **options)
        operators = {"outer": outer, "functional": hessian - outer, "full": hessian}
        return {
            part: float(hutchinson_squared_fro(operator, probes)) ** 0.5
            for part, operator in operators.items()
        }


def memory() -> dict[str, Any]:
    """Peak memory of exact norms in a process of its own: width 768, 12 heads, 4096 tokens.

    One sequence of 4096 tokens is measured for one head; all heads take about half an hour of
    processor time (`norms_of_a_wide_layer(1, "query", None)`), since 4096 keys meet each of the 78
    pairs of heads.
    """
    results = {}
    for name, sequences, group, head in (
        ("query, all heads", 32, "query", None),
        ("value, all heads", 32, "value", None),
        ("query, one head", 1, "query", 0),
    ):
        code = (
            "from benchmarks.attention_hessian import norms_of_a_wide_layer as run; "
            f"run({sequences}, {group!r}, {head})"
        )
        output = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout
        results[name] = found = json.loads(output)
        print(
            f"exact norms of {name}, width 768, 12 heads, {sequences} x {4096 // sequences} "
            f"tokens: {found['peak_bytes'] / 1e9:.2f} GB at most, {found['seconds']:.0f} s"
        )
    return results


def norms_of_a_wide_layer(sequences: int, group: str, head: int | None) -> None:
    """Print norms, seconds and peak memory of one block as JSON; runs in its own process."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    found = random_layer(sequences, 4096 // sequences, width=768, head=64, heads=12)
    start = time.perf_counter()
    norms = {part: found.block(group, group, part, head).frobenius_norm() for part in PARTS}
    seconds = time.perf_counter() - start
    print(json.dumps({"norms": norms, "seconds": seconds, "peak_bytes": peak_bytes()}))


def peak_bytes() -> int:
    """Peak memory of this process since it began.

    `ru_maxrss` would count the parent's before exec.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def random_layer(
    sequences: int, tokens: int, *, width: int, head: int, heads: int = 1
) -> AttentionHessian:
    """A causal layer with output projection and squared loss, float32."""
    x, y = torch.randn(2, sequences, tokens, width)
    query, key, value = torch.randn(3, heads, width, head) / width**0.5
    projection = torch.randn(heads, head, width) / width**0.5
    return hb.attention_hessian(x, query, key, value, projection, target=y, mask="causal")


def cost(rounds: int = 3) -> dict[str, Any]:
    """Time an exact norm and a product against N, with slopes over all and over large sizes.

    Processor time of one thread: two threads share large products better than small ones, which
    would flatten the slope.
    """
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {name: [] for name in THEORY}
    for count in SIZES:
        torch.manual_seed(0)
        vector = torch.randn(WIDTH * HEAD)
        timed: dict[str, list[float]] = {name: [] for name in THEORY}
        for _ in range(rounds):
            block = random_layer(count // 16, 16, width=WIDTH, head=HEAD).block("query", "query")
            timed["exact norm"].append(processed(block.frobenius_norm))
            timed["product"].append(processed(partial(matmul, block, vector)))
        for name, values in timed.items():
            seconds[name].append(statistics.median(values))
    slopes = {
        name: {
            ALL: slope(values, SIZES[0]),
            LARGE: slope(values, ASYMPTOTIC),
        }
        for name, values in seconds.items()
    }
    torch.set_num_threads(THREADS)
    draw(seconds, slopes)
    for name, (whole, large) in zip(
        slopes, (tuple(s.values()) for s in slopes.values()), strict=True
    ):
        print(
            f"cost of one {name}, query block of width {WIDTH}, head {HEAD}: N^{whole:.2f} over N "
            f"= {SIZES[0]} "
            f"to {SIZES[-1]}, N^{large:.2f} from N = {ASYMPTOTIC} on (theory: {THEORY[name]}); "
            f"{seconds[name][-1]:.4f} s at N = {SIZES[-1]}"
        )
    return {"tokens": SIZES, "seconds": seconds, "slopes": slopes, "theory": THEORY}


def slope(seconds: list[float], least: int) -> float:
    """Log-log slope by least squares over N >= least."""
    points = [(n, s) for n, s in zip(SIZES, seconds, strict=True) if n >= least]
    x, y = torch.tensor(points, dtype=torch.float64).log().T
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def draw(seconds: dict[str, list[float]], slopes: dict[str, dict[str, float]]) -> None:
    """Seconds against N on logarithmic axes, with both slopes and the growth that theory says."""
    series = []
    for (name, values), power in zip(seconds.items(), (2, 1), strict=True):
        whole, large = (slopes[name][sizes] for sizes in (ALL, LARGE))
        label = f"{name}: slope {whole:.2f} in all, {large:.2f} from N = {ASYMPTOTIC}"
        ends = (SIZES[0], SIZES[-1])
        growth = tuple(values[-1] * (count / SIZES[-1]) ** power for count in ends)
        series += [
            Series(name=label, x=tuple(SIZES), y=tuple(values)),
            Series(name=THEORY[name], x=ends, y=growth, guide=True),
        ]
    panel = Panel(
        title=f"Query block, width d = {WIDTH}, head width k = {HEAD}",
        x_label="tokens N",
        y_label="processor time of one thread (s)",
        series=tuple(series),
        x_scale="log",
        y_scale="log",
    )
    with atomic_path(FIGURE) as path:
        plot(panel).savefig(path, format="png", dpi=150)


if __name__ == "__main__":
    main()
