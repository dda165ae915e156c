"""Figures, tables and the HTML page of finished or started runs, from their files alone."""

from hessblocks.report.headline import headline
from hessblocks.report.heterogeneity import Heterogeneity
from hessblocks.report.loading import load_results
from hessblocks.report.results import FolderResults
from hessblocks.report.table import ComparisonRow, comparison_rows, summary

__all__ = [
    "ComparisonRow",
    "FolderResults",
    "Heterogeneity",
    "comparison_rows",
    "headline",
    "load_results",
    "summary",
]
