"""Detect and undo changes of a model: its form, checksums, write protection, a lock per model."""

from hessblocks.curvature.model_state.form import Form, checksums, form_of
from hessblocks.curvature.model_state.lock import exclusive
from hessblocks.curvature.model_state.usable import check_contexts, check_parameters
from hessblocks.curvature.model_state.write_protection import evaluation_mode, unwritten
