"""Page of reproduced figures and tables."""

from hessblocks_studies.gallery.page import missing_lines, study_folders, write_gallery
from hessblocks_studies.gallery.pictures import small_picture, study_pictures, with_lines
from hessblocks_studies.gallery.section import VERDICTS, StudySection, load_section, read_figure
