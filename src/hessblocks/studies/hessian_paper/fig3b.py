"""Figure 3b: the same layer with Pre-LN, which tames the growth."""

from __future__ import annotations

from functools import partial

from hessblocks.studies.engine import Scale
from hessblocks.studies.shared import Expected, Size, growth_study, growth_summary, logspace

_SIGMAS = logspace(-2, 1, 20)
SIZES: dict[Scale, Size] = {
    "smoke": Size(width=16, sums=8, seeds=2, sigmas=_SIGMAS),
    "laptop": Size(width=128, sums=64, seeds=5, sigmas=_SIGMAS),
    "paper": Size(width=128, sums=64, seeds=20, sigmas=_SIGMAS),
}
FLAT = 0.25
"""Slope that still counts as flat."""
EXPECTED = tuple(
    Expected(group=group, part=part, slope=0, tolerance=FLAT, source="paper: flat")
    for group in ("query", "value")
    for part in ("outer", "functional", "full")
)
STUDY = growth_study(
    "fig3b",
    title="the same layer with Pre-LN",
    source="Hessian paper, Figure 3b",
    published="With Pre-LN the blocks hardly depend on the size of the data while it is small.",
    block="softmax-pre-ln",
    loss="cross-entropy",
    sizes=SIZES,
    summarise=partial(
        growth_summary,
        title="Layer norm before each sub-block stops the growth",
        caption="Layer norms stand before attention, before the MLP and at the end.",
        expected=EXPECTED,
    ),
)
