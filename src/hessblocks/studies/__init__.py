"""The figures and tables of both papers, and our own questions, each run by name.

A study is a list of independent points. Finished points are stored as they come, so that a study goes
on where it stopped; points are measured in this process, in several, or on a Ray cluster.
"""

from hessblocks.studies.catalogue import find, names
from hessblocks.studies.folders import is_study_folder, refreshed
from hessblocks.studies.progress import Progress, Reporter
from hessblocks.studies.run import FailedPointsError, StudyResult, run_studies, run_study
from hessblocks.studies.study import SCALES, Check, Study

__all__ = [
    "SCALES",
    "Check",
    "FailedPointsError",
    "Progress",
    "Reporter",
    "Study",
    "StudyResult",
    "find",
    "is_study_folder",
    "names",
    "refreshed",
    "run_studies",
    "run_study",
]
