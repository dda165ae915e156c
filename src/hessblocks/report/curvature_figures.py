"""Figures of a curvature run: norms by layer and of all groups, maps, spectra."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from matplotlib import style
from matplotlib.figure import Figure as Drawn

from hessblocks.drawing import LEGEND_INCHES, draw_heatmap, set_scale, short_name
from hessblocks.figures import MATPLOTLIB, PHONE, Figure, Panel, Series, log_axis, plain_math
from hessblocks.report.comparison_figures import PARTS
from hessblocks.report.templates import drawn_picture, layer_map, log10
from hessblocks.storage import CurvatureResults, SpectrumRow

LOOKS = {"outer": ("#0072B2", "s"), "functional": ("#E69F00", "^"), "full": ("#000000", "o")}
"""Colour and marker of each part."""
MANY = 60
"""A line for each of more groups than this would be longer than anybody reads."""
MOST_KINDS = 40
"""Most rows of the map of layers."""
FLOOR = 1e-4
"""Smallest density shown, as a share of the largest."""


@style.context(MATPLOTLIB)
def write_curvature_figures(results: CurvatureResults) -> dict[str, list[str]]:
    """Write figures/<name>.png and .svg of all that was measured.

    Returns:
        Name (`layers`, `norms`, `map-<part>`, `spectra-<part>`) → pictures to embed in a page.

    Raises:
        RunError: a file cannot be written.
    """
    folder, names = results.folder, list(results.norms)
    drawn = {"layers": drawn_picture(layers_map(results), folder, "layers")}
    if 0 < len(names) <= MANY:
        wide, phone = norms_figure(results, 9), norms_figure(results, PHONE)
        drawn["norms"] = drawn_picture(wide, folder, "norms", phone)
    for part, cells in results.cells.items():
        values = [[cells[row, column].value for column in names] for row in names]
        layers = [results.layers[name] for name in names]
        heatmap = draw_heatmap(names, layers, values, part=part)
        drawn[f"map-{part}"] = drawn_picture(heatmap, folder, f"map-{part}")
    for part, densities in results.spectra.items():
        spectra = spectra_figure(densities, part)
        drawn[f"spectra-{part}"] = drawn_picture(spectra, folder, f"spectra-{part}")
    return {name: pictures for name, pictures in drawn.items() if pictures}


def layers_map(results: CurvatureResults) -> Figure | None:
    """Draw norms of the last part, kinds of groups × layers; None for one layer or many kinds."""
    part = results.parts[-1] if results.norms else ""
    kinds: dict[str, dict[int, float]] = defaultdict(dict)
    for name, norms in results.norms.items():
        layer = results.layers[name]
        if layer is not None:
            kind = name.partition(f".{layer}.")[2] or name
            kinds[kind.replace("_", " ")][layer] = log10(norms[part].value)
    depth = 1 + max((max(layers) for layers in kinds.values()), default=0)
    if depth < 2 or len(kinds) > MOST_KINDS:
        return None
    rows = {
        kind: tuple(norms.get(layer, math.nan) for layer in range(depth))
        for kind, norms in kinds.items()
    }
    return layer_map({f"{PARTS[part]}, by layer": rows}, "log₁₀ nats per token")


def norms_figure(results: CurvatureResults, width: float) -> Drawn:
    """Draw one line per group, one marker per part, with standard errors, on a logarithmic axis."""
    names = list(results.norms)
    scale = log_axis(norm.value for norms in results.norms.values() for norm in norms.values())
    figure = Drawn(figsize=(width, 0.24 * len(names) + 1.6), layout="constrained")
    axis = figure.subplots()
    for order, part in enumerate(results.parts):
        shift = (order - (len(results.parts) - 1) / 2) * 0.22
        norms = [norms[part] for norms in results.norms.values()]
        axis.errorbar(
            [norm.value for norm in norms],
            [index + shift for index in range(len(norms))],
            xerr=[norm.standard_error for norm in norms],
            linestyle="none",
            color=LOOKS[part][0],
            marker=LOOKS[part][1],
            markersize=4.2,
            label=PARTS[part],
        )
    set_scale(axis, "x", scale["y_scale"], scale["limits"])
    axis.xaxis.get_major_locator().set_params(numticks=int(1.5 * width))  # type: ignore[call-arg]
    named = short_name if width == PHONE else plain_math
    axis.set_yticks(range(len(names)), list(map(named, names)), fontsize=9)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.grid(visible=True, axis="both")
    axis.set_xlabel(r"Frobenius norm $\Vert H_{gg}\Vert_F$ (nats per token)", loc="right")
    figure.legend(loc="outside upper center", ncols=int(width / LEGEND_INCHES))
    return figure


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
