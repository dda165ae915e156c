"""Softmax attention in 2 to 5 layers without norm: every layer's blocks."""

from __future__ import annotations

from hessblocks.conventions import SYMBOLS
from hessblocks.figures import Panel
from hessblocks_studies.engine import Rows, Scale, Summary
from hessblocks_studies.growth import (
    Expected,
    Size,
    curves_panel,
    growth_study,
    growth_summary,
    logspace,
    with_guides,
)

_SIGMAS = logspace(-2, 1, 20)
_FEW = tuple(_SIGMAS[place] for place in (0, 3, 6, 12, 18))
_DEPTHS = (2, 3, 4, 5)
SIZES: dict[Scale, Size] = {
    "smoke": Size(width=16, sums=8, seeds=2, sigmas=_SIGMAS[:7:3], layers=(2, 5), probes=8),
    "laptop": Size(width=128, sums=64, seeds=6, sigmas=_FEW, layers=_DEPTHS),
    "paper": Size(width=128, sums=64, seeds=20, sigmas=_SIGMAS, layers=_DEPTHS),
}
EXPECTED = (
    Expected(group="query", part="outer", slope=6),
    Expected(group="query", part="full", slope=5),
    Expected(group="value", part="outer", slope=2),
    Expected(group="value", part="full", slope=2),
)


def summarise(rows: Rows) -> Summary:
    """Slopes for σ ≤ 0.1, and a panel for each block and part."""
    return growth_summary(
        rows,
        title="With skips, every layer grows as a single one does",
        caption="A line for each layer of each depth. The last layer's norms are exact, those of earlier layers "
        "estimates.",
        expected=EXPECTED,
        panels=[_panel(rows, one) for one in EXPECTED],
    )


def _panel(rows: Rows, one: Expected) -> Panel:
    panel = curves_panel(
        [row for row in rows if (row["group"], row["part"]) == (one.group, one.part)],
        f"{one.group} block of {SYMBOLS[one.part]}",
        label=lambda place: f"depth {place[0]}",
    )
    deepest = f"depth {max(_DEPTHS)}"
    return with_guides(panel, {deepest: int(one.slope)}, (0.0, 1.0))


STUDY = growth_study(
    "deep-softmax",
    title="2 to 5 softmax layers without norm against the size of the data",
    source="Hessian paper, appendix: deeper softmax networks",
    published="For small σ the slopes of one layer hold in every layer: value 2, query 5 (outer 6).",
    block="softmax",
    loss="cross-entropy",
    sizes=SIZES,
    summarise=summarise,
)
