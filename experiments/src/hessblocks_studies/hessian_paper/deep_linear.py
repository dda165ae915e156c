"""Measure linear attention alone, 1 to 3 layers: H_o grows as σ^(2·3^D), with D the depth.

The target of the squared loss is the next token, or the current one, as in the module of the
authors' notebook. H_o is the same for both. In earlier layers H_f contains the residual as a
factor, which for small σ is the target. H_f then grows as σ^(3^D), and so does H, since H_o is far
smaller.
"""

from collections.abc import Mapping
from typing import Any

from hessblocks.conventions import PARTS, SYMBOLS, Part
from hessblocks.figures import Panel, number
from hessblocks_studies import growth
from hessblocks_studies.engine import Rows, Scale, Summary

_SIGMAS = growth.logspace(-1, 0, 20)
_DEPTHS = (1, 2, 3)
_FEW = tuple(_SIGMAS[index] for index in (0, 3, 6, 9, 18))
SIZES: dict[Scale, growth.Size] = {
    "smoke": growth.Size(width=16, sums=8, seeds=2, sigmas=_FEW, layers=_DEPTHS, probes=8),
    "laptop": growth.Size(width=128, sums=64, seeds=5, sigmas=_FEW, layers=_DEPTHS, probes=4),
    "paper": growth.Size(width=128, sums=64, seeds=20, sigmas=_SIGMAS, layers=_DEPTHS),
}
TARGETS = (None, growth.CURRENT)
SHARE = 0.03
"""Largest relative distance from the slope of H_o that counts as agreement."""
SMALL_SHARE = 0.06
"""The same for H_f and H, which are fitted over fewer σ."""
SMALL = "slopes for small σ"
"""Name of the table for the range where outputs are small compared with the targets."""


EXPECTED = tuple(
    growth.Expected(
        group=growth.targeted(name, target),
        part=part,
        slope=2 * 3**depth if part == "outer" else 3**depth,
        tolerance=2 * 3**depth * SHARE if part == "outer" else 3**depth * SMALL_SHARE,
        layers=depth,
        table="slopes" if part == "outer" else SMALL,
        earlier=part != "outer",
    )
    for target in TARGETS
    for name in growth.GROUPS
    for depth in _DEPTHS
    for part in PARTS
)


def summarise(rows: Rows) -> Summary:
    """Fit slopes of H_o over all σ, and of H_f and H for small σ; plot a panel per target."""
    alike = [row for row in rows if row["part"] == "outer" or _earlier(row)]
    factor = max(
        growth.apart([row for row in alike if row["group"] in groups], "layers", "part")
        for groups in (
            {growth.targeted(name, target) for name in growth.GROUPS} for target in TARGETS
        )
    )
    return growth.growth_summary(
        rows,
        title="Linear attention alone: slopes 6, 18, 54 at depths 1, 2, 3",
        caption=(
            "Drawn is the query block of the first layer; value blocks and those of other layers "
            f"lie within a factor of {number(factor)} of it. No skip, no norm, no MLP; squared "
            "loss; float64, which the slope of 54 needs. In the last layer H is H_o."
        ),
        expected=EXPECTED,
        ranges={"slopes": (0.0, 1.0), SMALL: (0.0, 0.3)},
        panels=[_panel(rows, target) for target in TARGETS],
    )


def _earlier(row: Mapping[str, Any]) -> bool:
    """Tell whether a row is of H in a layer before the last."""
    return bool(row["part"] == "full" and row["layer"] + 1 < row["layers"])


def _panel(rows: Rows, target: str | None) -> Panel:
    """Plot H_o of each depth, and H where it differs."""
    group = growth.targeted("query", target)
    drawn = [row for row in rows if (row["layer"], row["group"]) == (0, group)]
    panel = growth.curves_panel(
        [row for row in drawn if row["part"] == "outer" or _earlier(row)],
        f"target: {target or 'next'} token",
        label=lambda curve: _name(curve[0], curve[3]),
    )
    outer = {_name(depth, "outer"): 2 * 3**depth for depth in _DEPTHS}
    full = {_name(depth, "full"): 3**depth for depth in _DEPTHS}
    return growth.with_guides(growth.with_guides(panel, outer, (0.0, 1.0)), full, (0.0, 0.3))


def _name(depth: int, part: Part) -> str:
    return f"depth {depth}, {SYMBOLS[part]}"


STUDY = growth.growth_study(
    "deep-linear",
    title="1 to 3 layers of linear attention without skip, norm and MLP",
    source="Hessian paper, appendix: deep linear self-attention",
    published=(
        "The outer blocks grow as σ^(2·3^D) with D the depth: slopes 6, 18 and 54; the paper "
        "draws the same slopes beside H_f and H of earlier layers, where small σ gives half of "
        "them."
    ),
    block="linear-alone",
    loss="squares",
    sizes=SIZES,
    targets=TARGETS,
    summarise=summarise,
)
