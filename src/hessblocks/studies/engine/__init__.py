"""Points, stores and executors: how a study is carried out, whatever it measures."""

from hessblocks.studies.engine.catalogue import find, names
from hessblocks.studies.engine.folders import is_study_folder, refreshed
from hessblocks.studies.engine.point import number, seed_of, whole, word
from hessblocks.studies.engine.reporter import Reporter, StudyProgress
from hessblocks.studies.engine.runner import FailedPointsError, StudyResult, run_studies, run_study
from hessblocks.studies.engine.study import SCALES, Check, Scale, Settings, Study, Summary
