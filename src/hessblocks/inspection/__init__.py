"""Curvature and signal of any saved or fresh model: what the commands do, from Python."""

from hessblocks.inspection.curvature_run import CurvatureRun, CurvatureRunSettings
from hessblocks.inspection.samples import Sample, corpus_batch, encoded_batch, random_batch
from hessblocks.inspection.signal_models import distinct, looked_at, sources
from hessblocks.inspection.signal_run import check_folder, recorded
from hessblocks.inspection.subject import Subject, fresh_model, preset_of, saved_model
