"""Figure 3a at laptop scale against the same points computed the notebook's way.

Run `python -m benchmarks studies`. The notebook's way: curvlinops with 20 probes a norm, float32, all
threads. Ours: `hessblocks reproduce fig3a --scale laptop`, exact, in one process on one thread. The
notebook's side is measured on every tenth point and multiplied by ten.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

from benchmarks.attention_hessian import estimated_norms
from hessblocks.data.addition import addition_batch
from hessblocks.studies import run_study
from hessblocks.studies.addition_model import addition_model
from hessblocks.studies.fig3a import settings
from hessblocks.studies.growth import GROUPS
from hessblocks.studies.point import seed_of
from hessblocks.studies.settings import number, whole
from hessblocks.studies.study import Settings

EVERY = 10


def main() -> dict[str, Any]:
    """Measure both sides and print a line."""
    points = settings("laptop", None)
    sample = points[::EVERY]
    notebook_point(sample[0])  # warms up
    theirs = EVERY * clocked(sample)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        result = run_study("fig3a", out=folder, scale="laptop")
        ours = time.perf_counter() - start
    ratio = theirs / ours
    print(
        f"figure 3a, {result.points} points: {ours:.1f} s exactly, {theirs:.0f} s by curvlinops with 20 "
        f"probes (from {len(sample)} of them): {ratio:.0f} times"
    )
    return {"points": result.points, "ours": ours, "curvlinops": theirs, "ratio": ratio}


def clocked(sample: list[Settings]) -> float:
    """Seconds of the notebook's way for these points."""
    start = time.perf_counter()
    for point in sample:
        notebook_point(point)
    return time.perf_counter() - start


def notebook_point(point: Settings) -> list[dict[str, float]]:
    """The norms of one point as the authors' notebook estimates them."""
    draw = seed_of(*(point[name] for name in ("study", "layers", "sigma", "seed")))
    model = addition_model(
        "softmax",
        layers=1,
        width=whole(point, "width"),
        sigma=number(point, "sigma"),
        seed=draw,
    ).float()
    batch = addition_batch(whole(point, "sums"), seed=draw)
    attention = model.model.layers[0].attention
    return [estimated_norms(model, getattr(attention, group).weight, batch) for group in GROUPS]


if __name__ == "__main__":
    main()
