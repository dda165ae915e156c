"""Points, stores and executors: the infrastructure that runs any study."""

from hessblocks.storage import POINTS as POINTS
from hessblocks.storage import Store as Store
from hessblocks.storage import read_store as read
from hessblocks_studies.engine.captured_steps import capture_steps as capture_steps
from hessblocks_studies.engine.executor import Executor
from hessblocks_studies.engine.outputs import figure_fields, outputs_of, write_outputs
from hessblocks_studies.engine.point import Measure, Outcome, Point, seed_of
from hessblocks_studies.engine.reporter import Pace, Reporter, Silent, StudyProgress
from hessblocks_studies.engine.stored import Stored, grown, opened
from hessblocks_studies.engine.study import SCALES, Check, Rows, Scale, Study, Summary
