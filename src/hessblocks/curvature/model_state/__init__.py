"""Detect and undo changes of a model: fingerprints, write protection, a lock per model."""

from hessblocks.curvature.model_state.fingerprints import Fingerprint, checksums, fingerprint_of
from hessblocks.curvature.model_state.usable import check_contexts, check_parameters
from hessblocks.curvature.model_state.write_protection import (
    evaluation_mode,
    exclusive,
    forget_writes,
    writes_of,
)
