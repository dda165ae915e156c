"""Fit the growth of one layer for large σ, where it flattens on double logarithmic axes."""

from collections.abc import Sequence

import numpy as np

from hessblocks.figures import Panel
from hessblocks_studies import growth
from hessblocks_studies.engine import Rows, Summary

WIDE = tuple(float(sigma) for sigma in np.linspace(0.1, 10, 20))
NARROW = tuple(float(sigma) for sigma in np.linspace(0.1, 1, 20))
ABOVE = "slopes above 1"
"""Name of the table for the range where the curves have flattened."""
EXPECTED = tuple(
    growth.Expected(
        group=group,
        part="full",
        slope=slope,
        tolerance=tolerance,
        table=ABOVE,
        source=f"paper: about {slope:g}",
    )
    for group, slope, tolerance in (("value", 1.8, 0.3), ("query", 4, 0.5))
)


def summarise(rows: Rows) -> Summary:
    """Fit slopes above σ = 1, and compare both ranges."""
    return growth.growth_summary(
        rows,
        title="Growth on linear scales of σ",
        caption="",
        expected=EXPECTED,
        ranges={ABOVE: (1.0, max(WIDE))},
        panels=[_panel(rows, WIDE), _panel(rows, NARROW)],
    )


def _panel(rows: Rows, sigmas: Sequence[float]) -> Panel:
    title = f"σ from {min(sigmas):g} to {max(sigmas):g}"
    return growth.curves_panel(
        [row for row in rows if row["sigma"] in sigmas], title, x_scale="linear"
    )


STUDY = growth.growth_study(
    "sigma-linear",
    title="one softmax layer on linear scales of σ, 0.1 to 10 and 0.1 to 1",
    source="Hessian paper, appendix: σ on linear scales",
    published="Above σ = 1 the curves flatten: value about σ^1.8, query about σ⁴.",
    block="softmax",
    loss="cross-entropy",
    precision="float32",
    sizes=growth.one_layer(tuple(sorted({*WIDE, *NARROW})), seeds=4),
    summarise=summarise,
)
