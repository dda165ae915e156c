"""Measure maps of H_o from sampled gradients: of GPT-2 small, and of 45 groups beside probes.

Run `python -m benchmarks sampled_map`: some ten minutes on two cores for the first, one for the
second.
"""

from __future__ import annotations

import resource
import time
import warnings
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks._timing import alternated
from hessblocks.curvature import CurvatureMap, Problem, curvature_map, parameter_groups

VOCABULARY, TOKENS, LIMIT = 50_257, 512, 13_000_000_000
"""Of GPT-2 small; bytes besides model and data."""
PROBES = 25
"""Of the large map, which takes four times as many samples."""
LAYERS, WIDTH, HEADS, WORDS, ROWS, CONTEXT = 6, 128, 4, 1024, 4, 64
"""Of the model with 45 groups."""
SAMPLES = (16, 20, 24, 32)
"""How many are compared with 4 probes in each group."""


def main(
    probes: int = PROBES, samples: tuple[int, ...] = SAMPLES, *, large: bool = True
) -> dict[str, Any]:
    """Both measurements; the second first, while the memory is small."""
    warnings.simplefilter("ignore")
    found = {"45 groups": against_probes(samples)}
    if large:
        found["GPT-2 small"] = gpt2_small(probes)
    return found


def gpt2_small(probes: int, vocabulary: int = VOCABULARY, limit: int = LIMIT) -> dict[str, Any]:
    """All blocks of GPT-2 small, from four samples a probe."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary)).eval()
    problem = Problem(model, torch.randint(0, vocabulary, (1, TOKENS)), memory_limit=limit)
    groups, start = parameter_groups(model), time.perf_counter()
    found = curvature_map(problem, groups, "outer", probes, method="sampled", tell=print)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    errors = own_errors(found)
    below = sum(cell.value < 0 for cell in found.table.values()) / len(found.table)
    spent = next(iter(found.table.values())).probes
    print(
        f"map of H_o, {len(groups)} x {len(groups)} groups, {spent} samples: {seconds / 60:.1f} "
        "minutes, "
        f"peak {peak / 1e9:.1f} GB, median error of the diagonal {100 * median(errors):.1f} %"
    )
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": vocabulary,
        "tokens": TOKENS,
        "groups": len(groups),
        "samples": spent,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "peak memory of the process (bytes)": peak,
        "median relative error of own blocks": median(errors),
        "largest relative error of own blocks": max(errors),
        "share of blocks not told from zero": below,
    }


def against_probes(samples: tuple[int, ...]) -> dict[str, Any]:
    """Count the gradients of a map of 45 groups, by 4 probes and by samples; one thread."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    config = GPT2Config(
        n_layer=LAYERS,
        n_embd=WIDTH,
        n_head=HEADS,
        vocab_size=WORDS,
        n_positions=CONTEXT,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, WORDS, (ROWS, CONTEXT))
    problem, groups = Problem(model, ids), parameter_groups(model)
    maps: dict[str, CurvatureMap] = {}

    def gradient() -> None:
        loss = model(input_ids=ids, labels=ids).loss
        torch.autograd.grad(loss, list(model.parameters()))

    def of(probes: float, method: str) -> None:
        name = f"{4 * probes:g} samples" if method == "sampled" else "4 probes"
        maps[name] = curvature_map(problem, groups, "outer", probes=probes, method=method)

    sides = {"gradient": lambda: [gradient() for _ in range(10)]}
    sides["4 probes"] = lambda: of(4, "probes")
    for count in samples:
        sides[f"{count} samples"] = lambda count=count: of(count // 4, "sampled")
    timed = alternated(sides, 2, processor=True)
    torch.set_num_threads(threads)
    result: dict[str, Any] = {"groups": len(groups)}
    for name, found in maps.items():
        own = median(own_errors(found))
        every = median([cell.relative_error for cell in found.table.values()])
        gradients = timed[name] / (timed["gradient"] / 10)
        print(
            f"{len(groups)} groups, {name}: {gradients:.1f} gradients, median error of own blocks "
            f"{100 * own:.1f} %, of all {100 * every:.1f} %"
        )
        result[name] = {
            "gradients": gradients,
            "median relative error of own blocks": own,
            "median relative error of all blocks": every,
        }
    return result


def own_errors(found: CurvatureMap) -> list[float]:
    """Relative errors of the groups' own norms that are not zero."""
    own = [found.table[name, name] for name in found.names]
    return [one.relative_error for one in own if one.value]


def median(values: list[float]) -> float:
    """The middle one."""
    return float(torch.tensor(values, dtype=torch.float64).median())


if __name__ == "__main__":
    main()
