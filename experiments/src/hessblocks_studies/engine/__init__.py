"""Points, stores and executors: how a study is carried out, whatever it measures."""

from hessblocks.studies.engine.cluster import RayCluster
from hessblocks.studies.engine.executors import Executor, InProcess
from hessblocks.studies.engine.outputs import outputs_of, write_outputs
from hessblocks.studies.engine.point import Measure, Outcome, Point, seed_of
from hessblocks.studies.engine.reporter import Pace, Reporter, Silent, StudyProgress
from hessblocks.studies.engine.store import POINTS, Store, opened, read
from hessblocks.studies.engine.study import SCALES, Check, Rows, Scale, Study, Summary
from hessblocks.studies.engine.workers import LocalProcesses
