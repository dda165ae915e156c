"""Figures, tables and the HTML page of finished or started runs, from their files alone."""

from hessblocks.report.comparison import (
    Comparison,
    ComparisonRow,
    compare_results,
    comparison_rows,
    headline,
    ratio_text,
    short_names,
    summary,
    with_interval,
    write_report,
)
from hessblocks.report.curvature_page import write_curvature_report
from hessblocks.report.signal_figure import write_signal_figures
from hessblocks.report.templates import drawn_picture, write_page
from hessblocks.storage import FolderResults, load_results

__all__ = [
    "Comparison",
    "ComparisonRow",
    "FolderResults",
    "compare_results",
    "comparison_rows",
    "headline",
    "load_results",
    "summary",
]
