"""Figures, tables and HTML pages of finished or started runs, from their files alone."""

from hessblocks.figures import number
from hessblocks.report.captions import ratio_text, short_names
from hessblocks.report.comparison import Comparison, compare_results, comparison_rows
from hessblocks.report.curvature_page import (
    WHOLE,
    eigenvalue_text,
    heterogeneity_text,
    norm_text,
    write_curvature_report,
)
from hessblocks.report.page import headline, summary, write_report
from hessblocks.report.pretrained_pages import (
    COSTS,
    NUMBERS,
    cost_cells,
    number_rows,
    price_headline,
    simplify_headline,
    write_price_report,
    write_simplify_report,
)
from hessblocks.report.quantised_page import (
    QUANTISED,
    file_cells,
    quantise_headline,
    write_quantise_report,
)
from hessblocks.report.signal_figure import QUANTITIES as SIGNAL_QUANTITIES
from hessblocks.report.signal_figure import write_signal_figures
from hessblocks.report.templates import drawn_picture, write_page
from hessblocks.storage import FolderResults, load_results

__all__ = [
    "Comparison",
    "FolderResults",
    "compare_results",
    "comparison_rows",
    "headline",
    "load_results",
    "summary",
]
