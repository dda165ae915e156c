"""The report: static figures beside one HTML file that needs nothing else and no network."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hessblocks.figures import Drawing, Mark, marks, plotly_panels, swatch, write_figures
from hessblocks.report.command_line import command_line
from hessblocks.report.comparison.along import along_drawings
from hessblocks.report.comparison.budget import budget_cells, budget_columns, matched
from hessblocks.report.comparison.cells import (
    COLUMNS,
    comparison_cells,
    environment_rows,
    setting_rows,
)
from hessblocks.report.comparison.curvature_points import (
    curvature_drawing,
    heterogeneity_drawing,
    zero_groups,
)
from hessblocks.report.comparison.headline import headline
from hessblocks.report.comparison.loss_curves import loss_drawing
from hessblocks.report.comparison.table import comparison_rows
from hessblocks.storage import FolderResults, load_results, write_text

FILES = ("results.csv", "metrics.jsonl", "observations.jsonl", "budget.json")
"""Numbers behind the page, linked where they are."""


def write_report(folder: Path) -> Path:
    """Write figures/*.png, figures/*.svg and report.html of a run folder, from its files alone.

    Args:
        folder: of one run or of a comparison, finished or not.

    Returns:
        The path of report.html.

    Raises:
        ArgumentError: `folder` is not a run folder.
        RunError: a file is damaged or cannot be written.
    """
    results = load_results(folder)
    drawings = all_drawings(results)
    write_figures(drawings, results.presets, folder / "figures")
    path = folder / "report.html"
    write_text(path, _page(results, drawings))
    return path


def all_drawings(results: FolderResults) -> tuple[Drawing, ...]:
    """The figures for which there are values, in the order of the page."""
    drawings = (
        heterogeneity_drawing(results),
        curvature_drawing(results),
        loss_drawing(results, "steps"),
        loss_drawing(results, "seconds"),
        loss_drawing(results, "tokens") if matched(results) == "tokens" else None,
        loss_drawing(results, "flops") if len(results.presets) > 1 else None,
        *along_drawings(results),
    )
    return tuple(drawing for drawing in drawings if drawing is not None)


def _page(results: FolderResults, drawings: tuple[Drawing, ...]) -> str:
    templates = Environment(
        loader=PackageLoader("hessblocks.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    looks = marks(results.presets)
    return templates.get_template("report.html").render(
        title=f"hessblocks {results.settings.command}: {', '.join(results.presets)}",
        heading=_heading(results),
        headline=headline(results),
        missing=results.missing,
        columns=(*COLUMNS, *(name.capitalize() for name in budget_columns(results))),
        rows=[
            (*comparison_cells(row), *budget_cells(results, row.preset))
            for row in comparison_rows(results)
        ],
        zero_groups=zero_groups(results),
        figures=[_figure(drawing, looks, results.folder) for drawing in drawings],
        command=command_line(results.settings),
        settings=list(setting_rows(results.settings.values)),
        environment=list(environment_rows(results.environment)),
        files=[name for name in FILES if (results.folder / name).exists()],
        plotly=Markup(get_plotlyjs()),
    )


def _heading(results: FolderResults) -> str:
    if len(results.presets) == 1:
        return f"hessblocks: the transformer block {results.presets[0]}"
    return f"hessblocks: {len(results.presets)} transformer blocks compared"


def _figure(drawing: Drawing, looks: dict[str, Mark], folder: Path) -> dict[str, Any]:
    picture = (folder / "figures" / f"{drawing.name}.png").read_bytes()
    return {
        "name": drawing.name,
        "title": drawing.title,
        "caption": Markup(drawing.caption.html),
        "columns": drawing.columns,
        "panels": plotly_panels(drawing, looks),
        "legend": [
            {"key": key, "text": text, "swatch": swatch(drawing, looks.get(key), place)}
            for place, (key, text) in enumerate(drawing.legend)
        ],
        "picture": base64.b64encode(picture).decode("ascii"),
    }
