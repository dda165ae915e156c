"""Linear attention alone, 1 to 3 layers: growth explodes with depth as 2·3^D."""

from __future__ import annotations

from functools import partial

from hessblocks.studies.engine import Scale
from hessblocks.studies.shared import GROUPS, Expected, Size, growth_study, growth_summary, logspace

_SIGMAS = logspace(-1, 0, 20)
SIZES: dict[Scale, Size] = {
    "smoke": Size(width=16, sums=8, seeds=2, sigmas=_SIGMAS[::6], layers=(1, 2, 3), probes=8),
    "laptop": Size(width=128, sums=64, seeds=8, sigmas=_SIGMAS[::2], layers=(1, 2, 3)),
    "paper": Size(width=128, sums=64, seeds=20, sigmas=_SIGMAS, layers=(1, 2, 3)),
}
SHARE = 0.03
"""Distance from the slope that still agrees, as a share of it."""
EXPECTED = tuple(
    Expected(
        group=group, part="outer", slope=2 * 3**depth, tolerance=SHARE * 2 * 3**depth, layers=depth
    )
    for depth in (1, 2, 3)
    for group in GROUPS
)
STUDY = growth_study(
    "deep-linear",
    title="1 to 3 layers of linear attention without skip, norm and MLP",
    source="Hessian paper, appendix: deep linear self-attention",
    published="The outer blocks grow as σ^(2·3^D) with D the depth: slopes 6, 18 and 54.",
    block="linear-alone",
    loss="squares",
    sizes=SIZES,
    summarise=partial(
        growth_summary,
        title="Linear attention alone: slopes 6, 18, 54 at depths 1, 2, 3",
        caption="No skip, no norm, no MLP; squared loss; float64, which the slope of 54 needs.",
        expected=EXPECTED,
        ranges={"slopes": (0.0, 1.0)},
    ),
)
