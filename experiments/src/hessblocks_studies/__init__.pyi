"""List the public names, for type checkers and for `__init__`, which imports each when used."""

from .catalogue import find as find, names as names
from .engine import (
    SCALES as SCALES,
    Check as Check,
    Reporter as Reporter,
    Study as Study,
    StudyProgress as StudyProgress,
)
from .folders import (
    is_study_folder as is_study_folder,
    refreshed as refreshed,
)
from .runner import (
    FailedPointsError as FailedPointsError,
    StudyResult as StudyResult,
    run_studies as run_studies,
    run_study as run_study,
)
