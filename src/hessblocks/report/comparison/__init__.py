"""The page of training runs side by side."""

from hessblocks.report.comparison.captions import ratio_text as ratio_text
from hessblocks.report.comparison.captions import short_names as short_names
from hessblocks.report.comparison.captions import with_error as with_error
from hessblocks.report.comparison.captions import with_interval as with_interval
from hessblocks.report.comparison.comparison import Comparison as Comparison
from hessblocks.report.comparison.comparison import ComparisonRow as ComparisonRow
from hessblocks.report.comparison.comparison import compare_results as compare_results
from hessblocks.report.comparison.comparison import comparison_rows as comparison_rows
from hessblocks.report.comparison.group_figures import PARTS as PARTS
from hessblocks.report.comparison.headline import headline as headline
from hessblocks.report.comparison.page import write_report as write_report
from hessblocks.report.comparison.summary import summary as summary
