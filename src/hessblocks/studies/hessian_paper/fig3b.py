"""Figure 3b: the same layer with Pre-LN, which tames the growth."""

from __future__ import annotations

from functools import partial

from hessblocks.studies.shared import Expected, growth_study, growth_summary, logspace, one_layer

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
    sizes=one_layer(logspace(-2, 1, 20), seeds=5),
    summarise=partial(
        growth_summary,
        title="Layer norm before each sub-block stops the growth",
        caption="Layer norms stand before attention, before the MLP and at the end.",
        expected=EXPECTED,
    ),
)
