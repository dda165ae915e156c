"""Loss against steps, tokens, seconds and operations, each seed's runs averaged step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from hessblocks.figures import Figure, Panel, Series, plain_math
from hessblocks.report.comparison.averages import average_rows, curve
from hessblocks.report.comparison.captions import seeds_and_error
from hessblocks.report.comparison.table import diverged
from hessblocks.storage import FolderResults, Metric

MOST_POINTS = 300
"""A longer curve is averaged over windows of successive points."""
HEADROOM = 1.1
"""The axis goes up to this multiple of the largest initial loss."""
MARGIN = 0.04
"""Empty share of the axis at each end."""
LOSS = "Loss $L$ (nats per token)"
AXES = {
    "steps": ("steps", "Optimiser step $t$ (updates)", "step"),
    "tokens": ("tokens", "Training tokens $n$ (tokens)", "tokens"),
    "seconds": ("training time", r"Training time $\tau$ (seconds)", "seconds"),
    "flops": ("operations", "Training operations $c$ (floating-point operations)", "step"),
    "loss": ("loss", LOSS, "batch_loss"),
}
"""Abscissas along training: words, label, and what a row holds of it (of operations its updates)."""
NO_BAND = "no band, since there is one seed"
SPLITS = {"train": "Training batches", "validation": "Held-out data"}


def loss_figure(results: FolderResults, against: str) -> Figure | None:
    """Loss of each preset on training batches and on held-out data.

    Args:
        results: a run folder.
        against: steps, tokens, seconds or flops.

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
        split: [
            own for preset in results.presets if (own := _curve(results, preset, split, against)).x
        ]
        for split in SPLITS
    }
    window = max(math.ceil(len(one.x) / MOST_POINTS) for split in curves.values() for one in split)
    limits = _limits(results.metrics)
    words, label, _ = AXES[against]
    return Figure(
        name=f"loss-{against}",
        title=f"Loss against {words}",
        panels=tuple(
            Panel(
                title=title,
                x_label=label,
                y_label=LOSS,
                series=tuple(_thinned(curve, window) for curve in curves[split]),
                limits=limits,
                band=True,
            )
            for split, title in SPLITS.items()
        ),
        caption=plain_math(_caption(results, window, limits[1])),
        size=(5.5, 4.2),
        shares="both",
        marked=results.presets,
    )


def _curve(results: FolderResults, preset: str, split: str, against: str) -> Series:
    end = _end(results, preset)
    rows = [
        row
        for row in results.metrics
        if row.preset == preset and row.split == split and row.step < end
    ]
    found = curve(preset, rows, AXES[against][2], "loss")
    if against == "flops":
        cost = average_rows(results.select("flops", preset=preset))
        found = replace(found, x=tuple(x * (cost.value if cost else math.nan) for x in found.x))
    return replace(found, note=_entry(results, preset))


def _thinned(curve: Series, window: int) -> Series:
    """Means over windows; an error is the root mean square of those in its window."""
    if window == 1 or len(curve.x) <= MOST_POINTS:
        return curve
    cuts = [slice(start, start + window) for start in range(0, len(curve.x), window)]
    return replace(
        curve,
        x=tuple(fmean(curve.x[cut]) for cut in cuts),
        y=tuple(fmean(curve.y[cut]) for cut in cuts),
        error=tuple(
            math.hypot(*curve.error[cut]) / math.sqrt(len(curve.error[cut])) for cut in cuts
        ),
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
    if not diverged(results, preset):
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
    text += seeds_and_error(results, "the band", NO_BAND)
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
    rows = (row for row in results.metrics if (row.preset, row.seed) == (preset, seed))
    found = next((row.diverged for row in rows if row.diverged), "")
    return f"{seed}: {found}" if found else str(seed)
