"""Figures, tables and HTML pages of finished or started runs, from their files alone."""

from hessblocks.figures import number
from hessblocks.report.captions import ratio_text
from hessblocks.report.comparison import Comparison, ComparisonRow, compare_results
from hessblocks.report.curvature_page import CURVATURE, write_curvature_report
from hessblocks.report.page import headline, summary, write_report
from hessblocks.report.pretrained_pages import PRICE, QUANTISE, SIMPLIFY
from hessblocks.report.signal_figure import QUANTITIES as SIGNAL_QUANTITIES
from hessblocks.report.signal_figure import write_signal_figures
from hessblocks.report.templates import RunPage, Table, drawn_picture, table, write_page
from hessblocks.storage import FolderResults, load_results

PAGES = {"curvature": CURVATURE, "price": PRICE, "quantise": QUANTISE, "simplify": SIMPLIFY}
"""Command → its page; folders of other commands have that of `write_report`."""

__all__ = ["Comparison", "FolderResults", "compare_results", "headline", "load_results", "summary"]
