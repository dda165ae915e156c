"""What a model is between two measurements: noted, kept as it was, and measured by one thread at a time."""

from hessblocks.curvature.model_state.checksums import checksums
from hessblocks.curvature.model_state.form import Form, form_of
from hessblocks.curvature.model_state.surroundings import check_surroundings
from hessblocks.curvature.model_state.threads import alone
from hessblocks.curvature.model_state.trainable import check_parameters
from hessblocks.curvature.model_state.untouched import (
    Untouched,
    attributes_of,
    forget_writes,
    restore,
    writes_of,
)
