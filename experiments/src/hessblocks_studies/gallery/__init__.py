"""The page of reproduced figures and tables."""

from hessblocks.report.studies.page import missing_lines, study_folders, write_gallery
from hessblocks.report.studies.section import VERDICTS, StudySection, load_section
