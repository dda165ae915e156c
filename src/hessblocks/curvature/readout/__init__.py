"""The end of a model, from its last hidden state to the loss, some rows at a time."""

from hessblocks.curvature.readout.late_logits import (
    LogitsUsed,
    Readout,
    compute_logits_late,
    readout_of,
    rows_together,
)
from hessblocks.curvature.readout.loss_end import (
    BatchLoss,
    LossDerivatives,
    LossEnd,
    Root,
    RowLoss,
    end_of,
)
