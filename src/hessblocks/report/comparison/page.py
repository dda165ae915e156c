"""Write the report: figures, and one HTML file that needs nothing else and no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from hessblocks.conventions import AnyPath
from hessblocks.figures import Figure, page_text
from hessblocks.report.command_line import command_line
from hessblocks.report.comparison.along import along_figures
from hessblocks.report.comparison.budget import budget_cells, budget_columns, matched
from hessblocks.report.comparison.cells import (
    COLUMNS,
    comparison_cells,
    environment_rows,
    setting_rows,
)
from hessblocks.report.comparison.curvature_points import (
    curvature_figure,
    heterogeneity_figure,
    zero_groups,
)
from hessblocks.report.comparison.headline import headline
from hessblocks.report.comparison.loss_curves import loss_figure
from hessblocks.report.comparison.table import comparison_rows
from hessblocks.report.templates import inlined, write_page
from hessblocks.storage import FolderResults, load_results

FILES = ("results.csv", "metrics.jsonl", "observations.jsonl", "budget.json")
"""Numbers behind the page, linked where they are."""


def write_report(folder: AnyPath) -> Path:
    """Write figures/*.png, figures/*.svg and report.html of a run folder, from its files alone.

    Args:
        folder: of one run or of a comparison, finished or not.

    Returns:
        The path of report.html.

    Raises:
        ArgumentError: `folder` is not a run folder.
        RunError: a file is damaged or cannot be written.
    """
    folder = Path(folder)
    results = load_results(folder)
    return write_page(
        folder,
        "comparison.html",
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
        blocks=inlined(blocks.read_bytes()) if (blocks := folder / "blocks.svg").is_file() else "",
        figures=[_shown(figure, folder / "figures") for figure in all_figures(results)],
        command=command_line(results.settings),
        settings=list(setting_rows(results.settings.values)),
        environment=list(environment_rows(results.environment)),
        files=[name for name in FILES if (folder / name).exists()],
    )


def all_figures(results: FolderResults) -> tuple[Figure, ...]:
    """The figures for which there are values, in the order of the page."""
    figures = (
        heterogeneity_figure(results),
        curvature_figure(results),
        loss_figure(results, "steps"),
        loss_figure(results, "seconds"),
        loss_figure(results, "tokens") if matched(results) == "tokens" else None,
        loss_figure(results, "flops") if len(results.presets) > 1 else None,
        *along_figures(results),
    )
    return tuple(figure for figure in figures if figure is not None)


def _heading(results: FolderResults) -> str:
    if len(results.presets) == 1:
        return f"hessblocks: the transformer block {results.presets[0]}"
    return f"hessblocks: {len(results.presets)} transformer blocks compared"


def _shown(figure: Figure, folder: Path) -> dict[str, Any]:
    """A figure on the page, drawn to its files as well."""
    from hessblocks.drawing import draw, page_picture

    return {
        "name": figure.name,
        "title": figure.title,
        "caption": Markup(page_text(figure.caption)),
        "picture": inlined(page_picture(draw(figure), folder, figure.name)),
    }
