"""Draw a curvature map: group × group norms as colours, from plain numbers.

It draws both maps in memory (`CurvatureMap.plot`) and stored maps in reports.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hessblocks.drawing.static import on_axes
from hessblocks.figures import PART_WORDS, plain_math

ZERO = "#D9D9D9"
"""Colour of a block that is exactly zero, not in the colour scale."""
UNTOLD = "#B9A3C9"
"""Colour of a block whose norm does not differ significantly from zero, not in the scale."""
DECADES = 12
"""Most decades of the colour scale, counted from the largest norm; smaller norms look alike."""
CELL = 0.24
"""Width and height of a block, in inches."""
LARGEST = 12.0
"""Width and height of a map, in inches; blocks of many groups are smaller."""
LABELS = 60
"""Most group names beside a map; with more groups, layers are named instead."""
MARGINS = (3.4, 2.2)
"""Space for names and colour scale beside the map, in inches."""


def draw_heatmap(
    names: Sequence[str],
    layers: Sequence[int | None],
    values: Sequence[Sequence[float]],
    *,
    part: str,
    ax: Axes | None = None,
) -> Figure:
    """Draw a map on a logarithmic colour scale, groups labelled, layers separated by lines.

    Args:
        names: names of the groups, in the order of rows and columns.
        layers: layers of the groups; None outside the layers.
        values: norms, row by row; NaN: not measured; below zero: not significantly different from
            zero.
        part: outer, functional or full.
        ax: axes to draw on; None: a new figure.

    Returns:
        The matplotlib figure that was drawn on.
    """
    side = min(CELL * max(len(names), 8), LARGEST)
    axis, figure = on_axes(ax, (side + MARGINS[0], side + MARGINS[1]))
    norms = np.asarray(values, dtype=float)
    _colour(axis, norms, r"Frobenius norm $\Vert H_{ij}\Vert_F$ (nats per token)", shrink=0.8)
    explained = _mark_zeros(axis, norms)
    _label(axis, names, layers)
    axis.set_title(f"Blocks of the {PART_WORDS[part]}", loc="left", pad=28 if explained else None)
    return figure


def _colour(axis: Axes, norms: np.ndarray, label: str, shrink: float = 1.0) -> None:
    """Draw positive norms on a logarithmic colour scale."""
    if not (positive := norms[norms > 0]).size:
        return
    highest = float(positive.max())
    lowest = max(float(positive.min()), highest * 10.0**-DECADES)
    lowest = min(lowest, highest / 10)  # equal norms need a scale of some width too
    image = axis.imshow(
        np.ma.masked_where(~(norms > 0), norms.clip(lowest)),
        cmap="cividis",
        norm=LogNorm(vmin=lowest, vmax=highest),
        interpolation="nearest",
    )
    axis.figure.colorbar(image, ax=axis, shrink=shrink, label=label)


def _mark_zeros(axis: Axes, norms: np.ndarray) -> bool:
    """Colour blocks that are zero or not told from it, with a note; tell whether there are any."""
    patches = []
    kinds = (norms == 0, ZERO, "exactly zero"), (norms < 0, UNTOLD, "not told from zero")
    for marked, colour, words in kinds:
        if marked.any():
            axis.imshow(marked[..., None] * np.array(to_rgba(colour)), interpolation="nearest")
            patches.append(Patch(facecolor=colour, edgecolor="#666666", label=words))
    if patches:
        above: Any = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
        axis.legend(handles=patches, ncols=len(patches), **above)
    return bool(patches)


def _label(axis: Axes, names: Sequence[str], layers: Sequence[int | None]) -> None:
    """Write short names at both sides, and a line wherever the layer changes."""
    short = [re.sub(r"^layers\.(\d+)\.(attention\.)?", r"\1 ", plain_math(n)) for n in names]
    pairs = enumerate(itertools.pairwise(layers), 1)
    changes = [index for index, (before, after) in pairs if before != after]
    indices, size = list(range(len(names))), 9 if len(names) <= 40 else 7
    if many := len(names) > LABELS:
        indices, size = _apart([0, *changes], len(names) / LABELS), 9
        short = [
            name if layer is None else f"layer {layer}"
            for name, layer in zip(short, layers, strict=True)
        ]
    shown = [short[index] for index in indices]
    axis.set_xticks(indices, shown, rotation=90, fontsize=size)
    axis.set_yticks(indices, shown, fontsize=size)
    axis.set_xlabel("Group of the columns (a number in front: its layer)")
    axis.set_ylabel("Group of the rows")
    axis.tick_params(length=0)
    axis.grid(visible=False)
    for index in changes:
        axis.axhline(index - 0.5, color="white", linewidth=0.5 if many else 1.4)
        axis.axvline(index - 0.5, color="white", linewidth=0.5 if many else 1.4)


def _apart(indices: Sequence[int], least: float) -> list[int]:
    """Select places at least `least` apart, so that their names do not overlap."""
    selected = [indices[0]]
    for index in indices[1:]:
        if index - selected[-1] >= least:
            selected.append(index)
    return selected


def draw_layers(
    names: Sequence[str],
    layers: Sequence[int | None],
    values: Sequence[float],
    *,
    part: str,
    ax: Axes | None = None,
) -> Figure:
    """Draw norms as layers × roles on a logarithmic colour scale; a note lists other groups.

    Args:
        names: names of the groups, such as layers.3.attention.query.
        layers: layers of the groups; None outside the layers.
        values: norms, one per group; zero or below: not significantly different from zero.
        part: outer, functional or full.
        ax: axes to draw on; None: a new figure.

    Returns:
        The matplotlib figure that was drawn on.
    """
    inside = {
        (layer, re.sub(r"^.*?\.\d+\.", "", name)): value  # the name without its layer
        for name, layer, value in zip(names, layers, values, strict=True)
        if layer is not None
    }
    places = sorted({layer for layer, _ in inside})
    roles = list(dict.fromkeys(role for _, role in inside))
    table = np.array([[inside.get((n, role), np.nan) for role in roles] for n in places])
    ax, figure = on_axes(ax, (0.42 * len(roles) + 2.6, max(0.17 * len(places) + 2.4, 4.0)))
    _colour(ax, table, "Frobenius norm (nats per token)")
    ax.set_aspect("auto")
    ax.set_facecolor(ZERO)
    ax.grid(visible=False)
    ax.set_xticks(range(len(roles)), roles, rotation=45, ha="right", rotation_mode="anchor")
    step = max(1, len(places) // 10)
    ax.set_yticks(range(0, len(places), step), list(map(str, places[::step])))
    ax.set_ylabel("layer")
    rest = zip(names, layers, values, strict=True)
    ax.set_xlabel("\n".join(f"{n}: {value:.3g}" for n, layer, value in rest if layer is None))
    ax.set_title(f"Norms of the {PART_WORDS[part]}", loc="left")
    return figure
