"""The page of one model's curvature."""

from hessblocks.report.curvature.page import write_curvature_report
