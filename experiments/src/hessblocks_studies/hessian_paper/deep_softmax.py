"""Measure the blocks of every layer of softmax attention with 2 to 5 layers, without norm."""

from hessblocks.conventions import SYMBOLS
from hessblocks.figures import Panel
from hessblocks_studies import growth
from hessblocks_studies.engine import Rows, Scale, Summary

_SIGMAS = growth.logspace(-2, 1, 20)
_FEW = tuple(_SIGMAS[index] for index in (0, 3, 6))
_DEPTHS = (2, 3, 4, 5)
SIZES: dict[Scale, growth.Size] = {
    "smoke": growth.Size(width=16, sums=8, seeds=2, sigmas=_SIGMAS[:7:3], layers=(2, 5), probes=8),
    "laptop": growth.Size(width=128, sums=64, seeds=5, sigmas=_FEW, layers=_DEPTHS, probes=4),
    "paper": growth.Size(width=128, sums=64, seeds=20, sigmas=_SIGMAS, layers=_DEPTHS),
}
EXPECTED = (
    growth.Expected(group="query", part="outer", slope=6),
    growth.Expected(group="query", part="full", slope=5),
    growth.Expected(group="value", part="outer", slope=2),
    growth.Expected(group="value", part="full", slope=2),
)


def summarise(rows: Rows) -> Summary:
    """Fit slopes for σ ≤ 0.1, and plot a panel for each block and part."""
    return growth.growth_summary(
        rows,
        title="With skips, every layer grows as a single one does",
        caption=(
            "A line for each layer of each depth. The last layer's norms are exact, those of "
            "earlier layers estimates."
        ),
        expected=EXPECTED,
        panels=[_panel(rows, slope) for slope in EXPECTED],
    )


def _panel(rows: Rows, slope: growth.Expected) -> Panel:
    panel = growth.curves_panel(
        [row for row in rows if (row["group"], row["part"]) == (slope.group, slope.part)],
        f"{slope.group} block of {SYMBOLS[slope.part]}",
        label=lambda curve: f"depth {curve[0]}",
    )
    deepest = f"depth {max(_DEPTHS)}"
    return growth.with_guides(panel, {deepest: int(slope.slope)}, (0.0, 1.0))


STUDY = growth.growth_study(
    "deep-softmax",
    title="2 to 5 softmax layers without norm against the size of the data",
    source="Hessian paper, appendix: deeper softmax networks",
    published=(
        "For small σ the slopes of one layer hold in every layer: value 2, query 5 (outer 6)."
    ),
    block="softmax",
    loss="cross-entropy",
    sizes=SIZES,
    summarise=summarise,
)
