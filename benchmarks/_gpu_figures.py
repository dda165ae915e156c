"""Figures of `gpu.py`, drawn from what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import hessblocks as hb
from hessblocks.drawing import draw_heatmap
from hessblocks.storage import atomic_path

PAPER = {"sas": 1.16, "sas-p": 1.20}
"""Speed over pre-ln that the simplified-blocks paper gives."""


def draw(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """A figure for each part that was measured.

    Returns:
        The files.
    """
    made = {
        "steps": two(speed_panel, steps_memory_panel, found["steps"]),
        "products": two(cost_panel, memory_panel, found["products"]),
        "decoding": two(decoding_panel, cache_panel, found["decoding"]),
        "map": map_figure(found["map"]),
    }
    paths = []
    for name, figure in made.items():
        if figure is not None:
            with atomic_path(folder / f"gpu_{name}.png") as path:
                figure.savefig(path, format="png", dpi=130)
            paths.append(folder / f"gpu_{name}.png")
    return paths


def items(part: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured of a part: by preset or context."""
    return {n: one for n, one in part.items() if n in hb.PRESETS or n.isdigit() if one}


def two(
    left: Callable[[Axes, dict[str, Any]], None],
    right: Callable[[Axes, dict[str, Any]], None],
    part: Mapping[str, Any],
) -> Figure | None:
    """Two panels of one part; None where nothing of it was measured."""
    measured = items(part)
    if not measured:
        return None
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, 2), (left, right), strict=True):
        panel(axes, measured)
    return figure


def bars(axes: Axes, values: Mapping[str, float], label: str) -> None:
    """One bar a preset."""
    axes.barh(list(values), list(values.values()))
    axes.invert_yaxis()
    axes.set_xlabel(label)


def speed_panel(axes: Axes, part: dict[str, Any]) -> None:
    """Steps, with the published figures as marks."""
    bars(
        axes,
        {n: one["speed_over_pre_ln"] for n, one in part.items()},
        "speed of a training step over pre-ln",
    )
    for name in PAPER.keys() & part.keys():
        axes.plot(PAPER[name], name, "k|", markersize=16, markeredgewidth=2)
    axes.set_title("marks: the paper's")


def steps_memory_panel(axes: Axes, part: dict[str, Any]) -> None:
    """Peak memory of a step."""
    bars(
        axes, {n: one["peak_bytes"] / 1e9 for n, one in part.items()}, "peak memory of a step (GB)"
    )


def decoding_panel(axes: Axes, part: dict[str, Any]) -> None:
    """Tokens decoded a second."""
    bars(axes, {n: one["tokens_per_second"] for n, one in part.items()}, "tokens decoded a second")


def cache_panel(axes: Axes, part: dict[str, Any]) -> None:
    """Memory of the cache."""
    bars(
        axes, {n: one["cache_bytes"] / 1e6 for n, one in part.items()}, "cache of one sequence (MB)"
    )


def cost_panel(axes: Axes, part: dict[str, Any]) -> None:
    """Products in gradients, over the context."""
    contexts = [int(context) for context in part]
    for kind, label in (("Hessian", "H"), ("OuterProduct", "H_o"), ("Functional", "H_f")):
        axes.plot(contexts, [one[kind]["gradients"] for one in part.values()], "o-", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel("time of a product (gradients)")
    axes.legend()


def memory_panel(axes: Axes, part: dict[str, Any]) -> None:
    """Peak memory, over the context."""
    contexts = [int(context) for context in part]
    for kind, label in (("Hessian", "product of H"), ("gradient", "gradient")):
        axes.plot(
            contexts, [one[kind]["peak_bytes"] / 1e9 for one in part.values()], "o-", label=label
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("context (tokens)")
    axes.set_ylabel("peak memory (GB)")
    axes.legend()


def map_figure(part: Mapping[str, Any] | None) -> Figure | None:
    """The map of H of all groups; None where it was not measured."""
    if not part or "rows" not in part:
        return None
    rows = part["rows"]["full"]
    norms = {(row["row"], row["column"]): row["value"] for row in rows}
    names = list(dict.fromkeys(row["row"] for row in rows))
    layers = [int(n.split(".")[1]) if n.startswith("layers.") else None for n in names]
    values = [[norms[row, column] for column in names] for row in names]
    return draw_heatmap(names, layers, values, part="full")
