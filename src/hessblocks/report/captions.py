"""The sentences of a caption that every figure needs: seeds, tokens, probes, meaning of a bar."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from html import escape

from hessblocks.report.drawings import Label
from hessblocks.report.results import FolderResults


def both(text: str) -> Label:
    """A text without mathematics, safe in matplotlib and on the page."""
    return Label(math=plain_math(text), html=escape(text))


def plain_math(text: str) -> str:
    """Text in which matplotlib sees no mathematics."""
    return text.replace("$", r"\$")


def seeds_and_error(results: FolderResults, mark: str, single: str) -> str:
    """How many seeds, and what the error mark is.

    Args:
        results: a run folder.
        mark: what shows the error ("the bar").
        single: what to say instead where there is one seed.

    Returns:
        One sentence.
    """
    seeds = sorted({row.seed for row in results.metrics} | {r.seed for r in results.measurements})
    if len(seeds) < 2:
        return f"1 seed ({', '.join(map(str, seeds))}); {single}."
    names = ", ".join(map(str, seeds))
    return f"Mean over {len(seeds)} seeds ({names}); {mark} is ± 1 standard error of that mean."


def sample(results: FolderResults) -> str:
    """On how many tokens curvature was measured, and with how many probes."""
    curvature = results.settings.section("curvature")
    tokens, probes = curvature.get("tokens"), curvature.get("probes")
    n = f"n = {tokens:,} held-out tokens" if isinstance(tokens, int) else "n not recorded"
    return f"{n}, {probes} random probes" if probes is not None else n


def short_names(groups: Iterable[str]) -> str:
    """Group names with the layers of the same group gathered: `attention.key of layers 0, 1`."""
    layers: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        if group.startswith("layers."):
            _, layer, rest = group.split(".", 2)
            layers[rest].append(layer)
        else:
            layers[group] = []
    return ", ".join(
        f"{rest} of layer{'s' if len(found) > 1 else ''} {', '.join(found)}" if found else rest
        for rest, found in layers.items()
    )


def number(value: float) -> str:
    """Three significant digits, with commas from a thousand on: 0.0123, 12.3, 12,300."""
    if value == 0 or abs(value) < 1e-3 or abs(value) >= 1e7:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{float(f'{value:.3g}'):,.{digits}f}"
