"""Plot how far blocks are above a base along the runs."""

from collections.abc import Sequence
from dataclasses import replace

from hessblocks.figures import Panel, Series
from hessblocks_studies.shared.gathering import mean_places, panel
from hessblocks_studies.shared.trained_summary import CLOSE, Runs, late


def gap_panel(runs: Runs, blocks: Sequence[str], base: str, title: str) -> Panel:
    """Plot blocks above a base along the runs, seed by seed; thin lines are the bounds of a match.

    Args:
        runs: runs of all of them.
        blocks: that are drawn, as far as they have a seed in common with the base.
        base: what they are above.
        title: title of the panel, before the name of the base.

    Returns:
        The panel; without series where nothing is measured.
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
    steps = [step for one in drawn.series for step in one.x]
    ends = (min(steps, default=0.0), max(steps, default=0.0))
    bounds = [
        Series(name=f"{bound:+g}", x=ends, y=(bound, bound), guide=True)
        for bound in (CLOSE, -CLOSE)
    ]
    return replace(drawn, series=(*drawn.series, *bounds)) if steps else drawn
