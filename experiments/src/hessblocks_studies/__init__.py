"""The figures and tables of both papers, and our own questions, each run by name.

A study is a list of independent points. Finished points are stored as they come, so that a study goes
on where it stopped; points are measured in this process, in several, or on a Ray cluster.
"""

from hessblocks.studies.catalogue import find, names
from hessblocks.studies.engine import SCALES, Check, Reporter, Study, StudyProgress
from hessblocks.studies.folders import check_studies, is_study_folder, refreshed
from hessblocks.studies.runner import FailedPointsError, StudyResult, run_studies, run_study

__all__ = [
    "SCALES",
    "Check",
    "FailedPointsError",
    "Reporter",
    "Study",
    "StudyProgress",
    "StudyResult",
    "check_studies",
    "find",
    "is_study_folder",
    "names",
    "refreshed",
    "run_studies",
    "run_study",
]
