"""The page of reproduced figures and tables."""

from hessblocks.report.studies.page import missing_lines, write_gallery
from hessblocks.report.studies.section import VERDICTS
