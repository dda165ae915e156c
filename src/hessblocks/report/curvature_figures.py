"""Figures of a curvature run: norms by layer, maps, spectra."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import style

from hessblocks.drawing import draw_heatmap
from hessblocks.figures import MATPLOTLIB, Figure, Panel, Series, plain_math
from hessblocks.report.comparison_figures import PARTS
from hessblocks.report.templates import drawn_picture, layer_map, log10
from hessblocks.storage import CurvatureResults, SpectrumRow

MOST_KINDS = 40
"""Most rows of the map of layers."""
FLOOR = 1e-4
"""Smallest density shown, as a share of the largest."""


@style.context(MATPLOTLIB)
def write_curvature_figures(results: CurvatureResults) -> dict[str, list[str]]:
    """Write figures/<name>.png and .svg of all that was measured.

    Returns:
        Name (`layers`, `map-<part>`, `spectra-<part>`) → pictures to embed in a page.

    Raises:
        RunError: a file cannot be written.
    """
    figures: dict[str, Any] = {"layers": layers_map(results)}
    names, layers = list(results.norms), [results.layers[name] for name in results.norms]
    for part, cells in results.cells.items():
        values = [[cells[row, column].value for column in names] for row in names]
        figures[f"map-{part}"] = draw_heatmap(names, layers, values, part=part)
    for part, densities in results.spectra.items():
        figures[f"spectra-{part}"] = spectra_figure(densities, part)
    drawn = {name: drawn_picture(figures[name], results.folder, name) for name in figures}
    return {name: pictures for name, pictures in drawn.items() if pictures}


def layers_map(results: CurvatureResults) -> Figure | None:
    """Draw norms of the last part, kinds of groups × layers; None for one layer or many kinds."""
    part = results.parts[-1] if results.norms else ""
    kinds: dict[str, dict[int, float]] = defaultdict(dict)
    for name, norms in results.norms.items():
        if (layer := results.layers[name]) is not None:
            kind = name.partition(f".{layer}.")[2] or name
            kinds[kind.replace("_", " ")][layer] = log10(norms[part].value)
    depth = 1 + max((max(layers) for layers in kinds.values()), default=0)
    if depth < 2 or len(kinds) > MOST_KINDS:
        return None
    rows = {kind: tuple(row.get(n, math.nan) for n in range(depth)) for kind, row in kinds.items()}
    return layer_map({f"{PARTS[part]}, by layer": rows}, "log₁₀ nats per token")


def spectra_figure(densities: Mapping[str, Sequence[SpectrumRow]], part: str) -> Figure:
    """Draw the density per group on a logarithmic axis, with a band of one standard error."""
    outer = " H_o has none below 0: what lies there is the smoothing's." if part == "outer" else ""
    return Figure(
        title="",
        caption=f"Each eigenvalue is drawn as a bell; the band is one standard error.{outer}",
        panels=tuple(_spectrum(name, points) for name, points in densities.items()),
        columns=4,
        size=(3.2, 2.3),
        shares="labels",
    )


def _spectrum(name: str, points: Sequence[SpectrumRow]) -> Panel:
    highest = max(point.density for point in points)
    density = Series(
        name="density",
        x=tuple(point.eigenvalue for point in points),
        y=tuple(point.density for point in points),
        error=tuple(point.standard_error for point in points),
    )
    return Panel(
        title=plain_math(name or "all groups as one"),
        x_label=r"Eigenvalue $\lambda$ (nats per token)",
        y_label="Share of eigenvalues per unit",
        series=(density,),
        y_scale="log",
        limits=(FLOOR * highest, 3 * highest),
        band=True,
    )
