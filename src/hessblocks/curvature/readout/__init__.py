"""The end of a model, from its last hidden state to the loss, some rows at a time."""

from hessblocks.curvature.readout.batch_loss import BatchLoss, LossDerivatives, Root, RowLoss
from hessblocks.curvature.readout.late_logits import (
    LogitsUsed,
    Readout,
    compute_logits_late,
    readout_of,
    rows_together,
)
from hessblocks.curvature.readout.loss_end import LossEnd, end_of
