"""Plot differences of validation loss to a base block along training."""

from collections.abc import Sequence
from dataclasses import replace

from hessblocks.figures import Panel, Series
from hessblocks_studies.shared.gathering import mean_places, panel
from hessblocks_studies.shared.trained_summary import CLOSE, Runs, late


def gap_panel(runs: Runs, blocks: Sequence[str], base: str, title: str) -> Panel:
    """Plot the loss of blocks minus that of a base against steps; thin lines mark ±`CLOSE`.

    Args:
        runs: runs of blocks and base.
        blocks: blocks to draw; those without a common seed with the base are left out.
        base: block whose loss is subtracted, seed by seed.
        title: title of the panel; the base's name is appended.

    Returns:
        The panel; without series if nothing is measured.
    """
    curves = {}
    for block in blocks:
        gaps: dict[float, list[float]] = {}
        for seed in runs.losses.get(block, {}).keys() & runs.losses.get(base, {}).keys():
            below = dict(runs.curve(base, seed))
            for step, loss in runs.curve(block, seed):
                if step in below:
                    gaps.setdefault(step, []).append(loss - below[step])
        if gaps:
            curves[block] = mean_places({step: gaps[step] for step in sorted(gaps)})
    labels = ("training step", "above the base (nats per token)")
    drawn = late(panel(f"{title}, above {base}", *labels, curves))
    steps = [step for curve in drawn.series for step in curve.x]
    ends = (min(steps, default=0.0), max(steps, default=0.0))
    bounds = [
        Series(name=f"{bound:+g}", x=ends, y=(bound, bound), guide=True)
        for bound in (CLOSE, -CLOSE)
    ]
    return replace(drawn, series=(*drawn.series, *bounds)) if steps else drawn
