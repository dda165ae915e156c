"""Loss against steps, tokens, seconds and operations, each seed's runs averaged step by step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from hessblocks.figures import Drawing, DrawnPanel, DrawnSeries, Label, Point, both
from hessblocks.report.comparison.averages import average_rows
from hessblocks.report.comparison.captions import seeds_and_error
from hessblocks.report.comparison.table import diverged
from hessblocks.statistics import average
from hessblocks.storage import FolderResults, Metric

MOST_POINTS = 300
"""A longer curve is averaged over windows of successive points."""
HEADROOM = 1.1
"""The axis goes up to this multiple of the largest initial loss."""
MARGIN = 0.04
"""Empty share of the axis at each end."""
AXES = {
    "tokens": Label(math="Training tokens $n$ (tokens)", html="Training tokens <i>n</i> (tokens)"),
    "flops": Label(
        math="Training operations $c$ (floating-point operations)",
        html="Training operations <i>c</i> (floating-point operations)",
    ),
    "steps": Label(math="Optimiser step $t$ (updates)", html="Optimiser step <i>t</i> (updates)"),
    "seconds": Label(
        math="Training time $\\tau$ (seconds)", html="Training time <i>τ</i> (seconds)"
    ),
}
WORDS = {"steps": "steps", "tokens": "tokens", "seconds": "training time", "flops": "operations"}
Axis = Literal["steps", "tokens", "seconds", "flops"]
LOSS = Label(math="Loss $L$ (nats per token)", html="Loss <i>L</i> (nats per token)")
SPLITS = {"train": both("Training batches"), "validation": both("Held-out data")}


def loss_drawing(results: FolderResults, against: Axis) -> Drawing | None:
    """Loss of each preset on training batches and on held-out data.

    Args:
        results: a run folder.
        against: the horizontal axis.

    Returns:
        The figure's content; None where no loss was written yet, or nothing of the axis.
    """
    if not any(math.isfinite(row.loss) for row in results.metrics):
        return None
    if against == "tokens" and any(row.tokens is None for row in results.metrics):
        return None
    if against == "flops" and not results.select("flops"):
        return None
    curves = {
        split: {preset: _curve(results, preset, split, against) for preset in results.presets}
        for split in SPLITS
    }
    window = max(_window(c) for presets in curves.values() for c in presets.values())
    limits = _limits(results.metrics)
    return Drawing(
        name=f"loss-{against}",
        title=f"Loss against {WORDS[against]}",
        kind="lines",
        panels=tuple(
            DrawnPanel(
                title=title,
                series=tuple(
                    DrawnSeries(key=preset, points=_thinned(curve, window))
                    for preset, curve in curves[split].items()
                    if curve
                ),
            )
            for split, title in SPLITS.items()
        ),
        columns=2,
        x=AXES[against],
        y=LOSS,
        caption=both(_caption(results, window, limits[1])),
        legend=tuple((preset, _entry(results, preset)) for preset in results.presets),
        limits=limits,
    )


def _curve(results: FolderResults, preset: str, split: str, against: str) -> tuple[Point, ...]:
    cost = average_rows(results.select("flops", preset=preset))
    each = cost.value if cost else math.nan
    steps: dict[int, list[Metric]] = defaultdict(list)
    end = _end(results, preset)
    for row in results.metrics:
        if row.preset == preset and row.split == split and row.step < end:
            steps[row.step].append(row)
    points = []
    for step in sorted(steps):
        rows = steps[step]
        loss = average([row.loss for row in rows])
        assert loss is not None, "the curve ends before the first loss that is not finite"
        points.append(
            Point(
                x=math.fsum(_place(row, against, each) for row in rows) / len(rows),
                y=loss.value,
                error=loss.standard_error or 0.0,
                name=f"step {step:,}",
            )
        )
    return tuple(points)


def _place(row: Metric, against: str, flops: float) -> float:
    """Where a loss stands on the axis; `flops` of an update."""
    if against == "seconds":
        return row.seconds
    if against == "tokens":
        return math.nan if row.tokens is None else row.tokens
    return row.step * (flops if against == "flops" else 1)


def _window(curve: Sequence[Point]) -> int:
    return math.ceil(len(curve) / MOST_POINTS) or 1


def _thinned(curve: tuple[Point, ...], window: int) -> tuple[Point, ...]:
    """Means over windows; an error is the root mean square of those in its window."""
    if window == 1 or len(curve) <= MOST_POINTS:
        return curve
    cut = [curve[start : start + window] for start in range(0, len(curve), window)]
    return tuple(
        Point(
            x=math.fsum(point.x for point in part) / len(part),
            y=math.fsum(point.y for point in part) / len(part),
            error=math.hypot(*(point.error for point in part)) / math.sqrt(len(part)),
            name=f"{part[0].name} and the next {len(part) - 1}",
        )
        for part in cut
    )


def _limits(metrics: Sequence[Metric]) -> tuple[float, float]:
    """Ends of the loss axis; a diverging curve leaves it, lest it flatten all others."""
    finite = [row for row in metrics if math.isfinite(row.loss)]
    first: dict[tuple[str, int, str], float] = {}
    for row in sorted(finite, key=lambda row: row.step):
        first.setdefault((row.preset, row.seed, row.split), row.loss)
    low = min(row.loss for row in finite)
    high = min(max(row.loss for row in finite), HEADROOM * max(first.values()))
    margin = MARGIN * (high - low) or 1.0
    return low - margin, high + margin


def _entry(results: FolderResults, preset: str) -> str:
    seeds = diverged(results, preset)
    if not seeds:
        return preset
    end = _end(results, preset)
    return f"{preset} (diverged{f' at step {end:,}' if math.isfinite(end) else ''})"


def _end(results: FolderResults, preset: str) -> float:
    """The first step at which a seed has no finite loss: a mean over the others would be another curve."""
    ends = [
        row.step for row in results.metrics if row.preset == preset and not math.isfinite(row.loss)
    ]
    return min(ends, default=math.inf)


def _caption(results: FolderResults, window: int, top: float) -> str:
    every = results.settings.section("training").get("log_every")
    text = f"Training loss is averaged over {every} steps. " if every is not None else ""
    text += seeds_and_error(results, "the band", "no band, since there is one seed")
    if window > 1:
        text += f" Curves longer than {MOST_POINTS} points are averaged over {window} points."
    if any(top < row.loss < math.inf for row in results.metrics):
        text += f" Values above {top:.3g} are cut off."
    for preset in results.presets:
        if seeds := diverged(results, preset):
            names = ", ".join(_where(results, preset, seed) for seed in seeds)
            text += f" {preset} diverged (seed {names}); its curve ends there."
    return text


def _where(results: FolderResults, preset: str, seed: int) -> str:
    """The seed, and what first was not finite, where it is recorded."""
    found = [
        row.diverged
        for row in results.metrics
        if (row.preset, row.seed) == (preset, seed) and row.diverged
    ]
    return f"{seed}: {found[0]}" if found else str(seed)
