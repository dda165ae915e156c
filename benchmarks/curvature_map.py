"""The curvature map of a model of GPT-2's size on a CPU: its time and its peak memory.

Run `python -m benchmarks curvature_map`; the time is set by the processor, count on half an hour.
The model is a GPT-2 of 12 layers, 12 heads and width 768 with random weights, float32, on one row
of 512 tokens. Its vocabulary is 1024 rather than 50,257, so that the time is that of the layers.
Groups: query, key, value, projection and MLP of each layer, embeddings, norms.
"""

from __future__ import annotations

import os
import resource
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from hessblocks.curvature import (
    ParameterGroup,
    Problem,
    column_squares,
    combine_columns,
    parameter_groups,
)
from hessblocks.curvature.groups import merge
from hessblocks.storage import atomic_path

LAYERS, HEADS, WIDTH, VOCABULARY, TOKENS = 12, 12, 768, 1024, 512
PROBES = 4
"""The fewest that give an error bar; each block off the diagonal is measured by 8."""
FIGURE = Path(__file__).parent / "results" / "curvature_map.png"


def main(probes: int = PROBES, layers: int = LAYERS, width: int = WIDTH) -> dict[str, Any]:
    """Measure the map of H and draw it."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=HEADS,
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    problem = Problem(model, torch.randint(0, VOCABULARY, (1, TOKENS)))
    groups = coarse(parameter_groups(model))
    start, processor = time.perf_counter(), time.process_time()
    columns = []
    for number, name in enumerate(groups):
        columns.append(column_squares(problem, groups, name, parts=["full"], probes=probes))
        minutes = (time.perf_counter() - start) / 60
        print(f"{number + 1} of {len(groups)} groups, {name}: {minutes:.1f} minutes", flush=True)
    found = combine_columns(groups, columns, "full")
    seconds, processor_seconds = time.perf_counter() - start, time.process_time() - processor
    with atomic_path(FIGURE) as path:
        found.plot().savefig(path, dpi=110)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"map of H, {len(groups)} groups x {probes} probes: {seconds / 60:.1f} minutes, ")
    print(f"peak memory of the process {peak / 1e9:.1f} GB, graph held: {problem.plan.hold}")
    share = found.off_diagonal_share
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": VOCABULARY,
        "tokens": TOKENS,
        "groups": len(groups),
        "probes a group": probes,
        "products": len(groups) * probes,
        "seconds": seconds,
        "processor seconds": processor_seconds,
        "threads": torch.get_num_threads(),
        "other programs were running": os.getloadavg()[2] > torch.get_num_threads() + 1,
        "peak memory of the process (bytes)": peak,
        "memory of the machine (bytes)": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "largest over smallest own norm": {
            "value": found.heterogeneity.ratio.value,
            "standard error": found.heterogeneity.ratio.standard_error,
            "largest": found.heterogeneity.largest,
            "smallest": found.heterogeneity.smallest,
        },
        "off-diagonal share": {"value": share.value, "standard error": share.standard_error},
    }


def coarse(groups: dict[str, ParameterGroup]) -> dict[str, ParameterGroup]:
    """Fewer groups: the MLP of a layer in one, all norms in one, all embeddings in one."""
    found: dict[str, list[ParameterGroup]] = {}
    for name, group in groups.items():
        found.setdefault(title(name, group), []).append(group)
    return {name: merge(name, parts) for name, parts in found.items()}


def title(name: str, group: ParameterGroup) -> str:
    """The coarse group that a group falls into."""
    if group.role in ("mlp_in", "mlp_out"):
        return f"layers.{group.layer}.mlp"
    return {"norm": "norms", "embedding": "embeddings"}.get(group.role, name)


if __name__ == "__main__":
    main()
