"""Figures, tables and the HTML page of finished or started runs, from their files alone."""

from hessblocks.figures import number as number
from hessblocks.report.captions import ratio_text as ratio_text
from hessblocks.report.captions import short_names as short_names
from hessblocks.report.captions import with_interval as with_interval
from hessblocks.report.captions import zero_groups as zero_groups
from hessblocks.report.comparison import Comparison as Comparison
from hessblocks.report.comparison import ComparisonRow as ComparisonRow
from hessblocks.report.comparison import compare_results as compare_results
from hessblocks.report.comparison import comparison_rows as comparison_rows
from hessblocks.report.curvature_page import norm_text as norm_text
from hessblocks.report.curvature_page import write_curvature_report as write_curvature_report
from hessblocks.report.headline import headline as headline
from hessblocks.report.page import write_report as write_report
from hessblocks.report.signal_figure import write_signal_figures as write_signal_figures
from hessblocks.report.summary import summary as summary
from hessblocks.report.templates import drawn_picture as drawn_picture
from hessblocks.report.templates import write_page as write_page
from hessblocks.storage import FolderResults as FolderResults
from hessblocks.storage import load_results as load_results

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
