"""Figure 3a at laptop scale against the same points computed the notebook's way, all of them.

Run `python -m benchmarks fig3a`: about six minutes. The notebook's way: curvlinops with 20 probes a
norm, float32. Ours: `hessblocks reproduce fig3a --scale laptop`, exact, with its store, fits and
files. Both in this process on one thread; ours before and after the other, the slower one counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.attention_hessian import estimated_norms
from hessblocks_studies import find, run_study
from hessblocks_studies.data import addition_batch
from hessblocks_studies.engine import Scale, seed_of
from hessblocks_studies.growth import GROUPS, GrowthSettings, addition_model

SCALE: Scale = "laptop"


def main() -> dict[str, Any]:
    """Measure both sides and print a line."""
    torch.set_num_threads(1)
    points = find("fig3a").settings(SCALE, None)
    run_fig3a("smoke")  # both sides warm
    notebook_point(points[0])
    first = clocked(lambda: run_fig3a(SCALE))
    theirs = clocked(lambda: [notebook_point(point) for point in points])
    second = clocked(lambda: run_fig3a(SCALE))
    ours = {clock: max(first[clock], second[clock]) for clock in first}
    ratios = {clock: theirs[clock] / ours[clock] for clock in ours}
    print(
        f"figure 3a, {len(points)} points: {ours['elapsed']:.1f} s exactly, "
        f"{theirs['elapsed']:.0f} s by "
        f"curvlinops with 20 probes: {ratios['elapsed']:.0f} times "
        f"({ratios['processor']:.0f} times in processor time)"
    )
    return {
        "points": len(points),
        "threads": 1,
        "ours": ours,
        "curvlinops": theirs,
        "ratio": ratios["elapsed"],
        "ratio_of_processor_time": ratios["processor"],
    }


def run_fig3a(scale: str) -> None:
    """The whole study in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        run_study("fig3a", out=folder, scale=scale)


def clocked(run: Callable[[], object]) -> dict[str, float]:
    """Seconds of one call: elapsed, and of the processor, which other programs disturb least."""
    start, start_processor = time.perf_counter(), time.process_time()
    run()
    return {
        "elapsed": time.perf_counter() - start,
        "processor": time.process_time() - start_processor,
    }


def notebook_point(point: GrowthSettings) -> list[dict[str, float]]:
    """The norms of one point as the authors' notebook estimates them."""
    draw = seed_of(point.study, point.layers, point.sigma, point.seed)
    model = addition_model(
        "softmax", layers=1, width=point.width, sigma=point.sigma, seed=draw
    ).float()
    batch = addition_batch(point.sums, seed=draw)
    attention = model.model.layers[0].attention
    return [estimated_norms(model, getattr(attention, group).weight, batch) for group in GROUPS]


if __name__ == "__main__":
    main()
