"""The parts of `gpu.py`; each takes its sizes, and runs on the CPU where there is no CUDA device.

Letters: T tokens of context, K vectors.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import StaticCache

import hessblocks as hb
from benchmarks._gpu_clock import FIRST, Clock
from benchmarks._timing import clocked
from benchmarks.blocks import Sizes, built
from hessblocks.curvature import column_squares, combine_columns
from hessblocks.curvature.groups import merge
from hessblocks_studies.masked import peak_bytes
from hessblocks_studies.shared import TimedModel, in_turns

CLIP = 1.0
OTHERS = ("sas", "sas-p", *(name for name in hb.PRESETS if name not in ("pre-ln", "sas", "sas-p")))
"""The presets against pre-ln, those with published figures first."""
BATCHED = 16
"""Vectors multiplied together, K."""
PROBES = 4
"""The fewest of a map that give an error bar."""


def where() -> str:
    """Cuda where there is a device, else cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def peak(run: Callable[[], Any], held: Sequence[Tensor]) -> int:
    """Most bytes in use while `run` runs.

    As CUDA allocates them, else counted, those held before included.
    """
    if where() == "cpu":
        return peak_bytes(run, held)
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def least(run: Callable[[], object], calls: int = 3) -> float:
    """Least seconds of some calls, after one that warms up."""
    run()
    return min(clocked(run) for _ in range(calls))


def made(name: str, sizes: Sizes) -> tuple[Any, Tensor]:
    """A preset or GPT-2 on the device, and random tokens."""
    torch.manual_seed(0)
    with torch.device(where()):
        tokens = torch.randint(sizes.vocab_size, (sizes.batch, sizes.context))
        return built(name, sizes), tokens


def timed_model(name: str, sizes: Sizes) -> TimedModel:
    """A preset with its batch; bf16 on CUDA."""
    model, tokens = made(name, sizes)
    return TimedModel(model, tokens, tokens, CLIP)


def steps(clock: Clock, sizes: Sizes, rounds: int, names: Sequence[str] = OTHERS) -> dict[str, Any]:
    """Training steps of each preset in turns with pre-ln, two models in memory at a time."""
    found: dict[str, Any] = {"sizes": asdict(sizes)}
    expected = FIRST
    for name in names:
        start = time.monotonic()
        found[name] = clock.item(
            f"steps of {name}", partial(against_pre_ln, name, sizes, rounds, False), expected
        )
        expected = 1.2 * (time.monotonic() - start) if found[name] else expected
    return found


def compiled(clock: Clock, sizes: Sizes, rounds: int, compiler: str) -> dict[str, Any]:
    """The same for SAS and SAS-P, each layer of both sides compiled."""
    found: dict[str, Any] = {"sizes": asdict(sizes)}
    for name in ("sas-p", "sas"):
        run = partial(against_pre_ln, name, sizes, rounds, compiler)
        found[name] = clock.item(f"compiled steps of {name}", run, 60.0)
    return found


def against_pre_ln(name: str, sizes: Sizes, rounds: int, compiler: str | bool) -> dict[str, Any]:
    """Speed of a preset's steps over those of pre-ln, turn by turn, and the peak of each alone."""
    sides: dict[str, TimedModel] = {}
    peaks: dict[str, int] = {}
    for side in (name, "pre-ln"):
        sides[side] = timed_model(side, sizes)
        if compiler:
            for layer in sides[side].model.model.layers:
                layer.compile(backend=compiler)
        sides[side].step()  # after which the optimiser's averages exist
        if side == name or compiler:
            peaks[side] = peak(sides[side].step, sides[side].held())
    seconds = in_turns({side: timed.step for side, timed in sides.items()}, rounds)
    ratios = [ours / its for its, ours in zip(seconds[name], seconds["pre-ln"], strict=True)]
    tokens = sizes.batch * sizes.context
    result = {
        "parameters": sum(p.numel() for p in sides[name].model.parameters()),
        "seconds": statistics.median(seconds[name]),
        "pre_ln_seconds": statistics.median(seconds["pre-ln"]),
        "tokens_per_second": tokens / statistics.median(seconds[name]),
        "speed_over_pre_ln": statistics.median(ratios),
        "speed_of_each_turn": ratios,
        "peak_bytes": peaks[name],
        # in memory beside the first side's model
        "pre_ln_peak_bytes": peaks.get("pre-ln"),
    }
    print(
        f"{'compiled ' if compiler else ''}{name}, {sizes.depth} x {sizes.width}, context "
        f"{sizes.context}: "
        f"{result['speed_over_pre_ln']:.3f} times pre-ln, {result['tokens_per_second']:.0f} "
        f"tokens/s, peak {result['peak_bytes'] / 1e9:.2f} GB",
        flush=True,
    )
    return result


def decoding(clock: Clock, sizes: Sizes, rounds: int = 2) -> dict[str, Any]:
    """Measure tokens per second of decoding one sequence with each preset, and the cache's size."""
    found: dict[str, Any] = {"sizes": asdict(sizes)}
    for name in ("pre-ln", *OTHERS):
        found[name] = clock.item(f"decoding of {name}", partial(decoded, name, sizes, rounds))
    return found


def decoded(name: str, sizes: Sizes, rounds: int) -> dict[str, Any]:
    """One preset's."""
    timed = timed_model(name, sizes)
    caches: list[int] = []
    seconds = min(in_turns({name: lambda: caches.append(timed.decode())}, rounds)[name])
    result = {"tokens_per_second": sizes.context / seconds, "cache_bytes": caches[0]}
    print(
        f"{name}: {result['tokens_per_second']:.0f} tokens/s decoded, cache of {sizes.context} "
        f"tokens {caches[0] / 1e6:.1f} MB",
        flush=True,
    )
    return result


def static_decoding(clock: Clock, sizes: Sizes, rounds: int = 5) -> dict[str, Any]:
    """Measure decoding with a cache of fixed size, one CUDA graph a token; no graph on a CPU."""
    found: dict[str, Any] = {"sizes": asdict(sizes)}
    for name in ("sas-p", "sas", "pre-ln"):
        run = partial(decoded_statically, name, sizes, rounds)
        found[name] = clock.item(f"static decoding of {name}", run)
    return found


@torch.no_grad()
def decoded_statically(name: str, sizes: Sizes, rounds: int) -> dict[str, Any]:
    """One preset's: seconds of a token at a full cache, in bf16 on CUDA."""
    model, tokens = made(name, sizes)
    model = model.eval().to(torch.bfloat16 if where() == "cuda" else torch.float32)
    cache = StaticCache(config=model.config, max_cache_len=sizes.context)

    def step() -> Tensor:
        logits: Tensor = model(tokens[:1, :1], past_key_values=cache, use_cache=True).logits
        return logits

    run: Callable[[], object] = step
    step()  # makes the cache
    if where() == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run = graph.replay
    seconds = least(run, rounds)
    print(f"static {name}: {1 / seconds:.0f} tokens/s at {sizes.context} tokens", flush=True)
    return {"tokens_per_second": 1 / seconds}


def products(clock: Clock, sizes: Sizes, contexts: Sequence[int], tokens: int) -> dict[str, Any]:
    """Time products of H, H_o and H_f of a GPT-2 by context, in gradients with fused attention."""
    found: dict[str, Any] = {"sizes": asdict(sizes), "tokens": tokens}
    expected = FIRST
    for context in contexts:
        start = time.monotonic()
        at = replace(sizes, context=context, batch=max(1, tokens // context))
        found[str(context)] = clock.item(
            f"products at context {context}", partial(products_at, at), expected
        )
        if found[str(context)]:
            expected = 3 * (time.monotonic() - start)
    return found


def products_at(sizes: Sizes) -> dict[str, Any]:
    """Seconds and peak of a gradient and of products with one vector and with K."""
    model, ids = made("gpt2", sizes)
    weights = list(model.eval().parameters())

    def gradient() -> object:
        return torch.autograd.grad(model(ids, labels=ids).loss, weights)

    result: dict[str, Any] = {
        "gradient": {"seconds": least(gradient), "peak_bytes": peak(gradient, weights)}
    }
    unit = result["gradient"]["seconds"]
    limit = 8 * torch.cuda.mem_get_info()[0] // 10 if where() == "cuda" else None
    everything = merge("everything", list(hb.parameter_groups(model, "tensor").values()))
    for kind in (hb.Hessian, hb.OuterProduct, hb.Functional):
        operator = kind(hb.Problem(model, ids, memory_limit=limit), everything)
        with operator.kept():
            result[kind.__name__] = costs(operator, unit, weights)
    figures = result["Hessian"]
    print(
        f"products at context {sizes.context}: H {figures['gradients']:.2f} gradients, "
        f"{figures['gradients_a_vector_of_16']:.2f} of {BATCHED} together, "
        f"peak {figures['peak_bytes'] / 1e9:.2f} GB; a gradient {unit:.4f} s",
        flush=True,
    )
    return result


def costs(operator: hb.LinearOperator, unit: float, held: Sequence[Tensor]) -> dict[str, float]:
    """Time a product of one and of K vectors, also in gradients of `unit` seconds, and its peak."""
    columns = torch.randn(operator.shape[1], BATCHED).to(operator.device)

    def single() -> Tensor:
        return operator @ columns[:, 0]

    one, many = least(single), least(lambda: operator @ columns, calls=1) / BATCHED
    return {
        "seconds": one,
        "gradients": one / unit,
        "gradients_a_vector_of_16": many / unit,
        "peak_bytes": peak(single, held),
    }


def full_map(clock: Clock, sizes: Sizes) -> dict[str, Any] | None:
    """The maps of H and H_o of every group of a GPT-2.

    The time of a column first, then whether all fit.
    """
    model, ids = made("gpt2", sizes)
    problem, groups = hb.Problem(model.eval(), ids), hb.parameter_groups(model)
    column = partial(column_squares, problem, groups, parts=["outer", "full"], probes=PROBES)
    names = list(groups)
    if clock.item("first column of the map", partial(column, names[-1])) is None:
        return None
    start = time.monotonic()
    columns = [clock.item(f"column {names[0]} of the map", partial(column, names[0]))]
    each = time.monotonic() - start
    result: dict[str, Any] = {
        "sizes": asdict(sizes),
        "groups": len(names),
        "probes": PROBES,
        "seconds_of_first_column": each,
    }
    whole = clock.item(
        "map of all groups",
        lambda: columns + [column(name) for name in names[1:]],
        each * len(names),
    )
    if whole is None:
        return result
    maps = {part: combine_columns(groups, whole, part) for part in ("outer", "full")}  # type: ignore[arg-type]
    result["seconds"] = time.monotonic() - start
    result["largest_over_smallest"] = {
        part: found.heterogeneity.ratio.value for part, found in maps.items()
    }
    result["rows"] = {part: found.to_rows() for part, found in maps.items()}
    print(
        f"map of {len(names)} groups, {PROBES} probes each: {result['seconds']:.0f} s", flush=True
    )
    return result


def kernels(clock: Clock, contexts: Sequence[int], *, heads: int, width: int) -> dict[str, Any]:
    """Compare torch's fused and plain attention with ours by tiles, in first and second order."""
    found: dict[str, Any] = {"heads": heads, "head_width": width}
    sides: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"plain": plain}
    if hasattr(hb, "second_order_attention"):
        sides["tiled"] = partial(hb.second_order_attention, is_causal=True)
    else:
        clock.left_out["tiled kernels"] = "this version has no hb.second_order_attention"
        print(f"tiled kernels: left out: {clock.left_out['tiled kernels']}")
    for context in contexts:
        shape = (1, heads, context, width)
        given = [torch.randn(shape, device=where(), requires_grad=True) for _ in range(3)]
        others = [torch.randn(shape, device=where()) for _ in range(4)]
        at: dict[str, Any] = {}
        run = partial(first_order, fused, given, others[3])
        at["fused"] = clock.item(
            f"fused kernels at {context}", partial(seconds_and_peak, run, given), 1
        )
        for name, attend in sides.items():
            run = partial(second_order, attend, given, others)
            what = f"{name} kernels at {context}"
            at[name] = clock.item(what, partial(seconds_and_peak, run, given), 5)
        found[str(context)] = at
        said = (
            f"{n} {s['seconds']:.4f} s {s['peak_bytes'] / 1e6:.0f} MB" for n, s in at.items() if s
        )
        print(f"attention at {context}: {', '.join(said)}", flush=True)
    return found


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Torch's own choice."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """By matrices, which can be differentiated twice."""
    with sdpa_kernel(SDPBackend.MATH):
        return fused(query, key, value)


def first_order(attend: Any, given: Sequence[Tensor], out: Tensor) -> object:
    """Forward and backward."""
    return torch.autograd.grad(attend(*given), given, out)


def second_order(attend: Any, given: Sequence[Tensor], others: Sequence[Tensor]) -> object:
    """Forward, backward and the backward of ⟨gradient, other vectors⟩."""
    *along, out = others
    gradients = torch.autograd.grad(attend(*given), given, out, create_graph=True)
    return torch.autograd.grad(gradients, given, along)


def seconds_and_peak(run: Callable[[], object], held: Sequence[Tensor]) -> dict[str, float]:
    """Least seconds of three calls, and the most memory of one."""
    return {"seconds": least(run), "peak_bytes": peak(run, held)}
