"""The page of training runs side by side."""

from hessblocks.report.comparison.budget import budget_cells, budget_columns
from hessblocks.report.comparison.captions import ratio_text, short_names, with_error, with_interval
from hessblocks.report.comparison.cells import (
    COLUMNS,
    comparison_cells,
    environment_rows,
    setting_rows,
)
from hessblocks.report.comparison.curvature_points import PARTS
from hessblocks.report.comparison.headline import headline
from hessblocks.report.comparison.page import write_report
from hessblocks.report.comparison.table import ComparisonRow, comparison_rows, summary
