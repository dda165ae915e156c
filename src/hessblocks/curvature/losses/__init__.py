"""Bring batches into one form, and differentiate their losses in the logits."""

from hessblocks.curvature.losses.batch_loss import (
    BatchLoss,
    Differentiated,
    LossDerivatives,
    LossFunction,
    Root,
    callable_loss,
    named_errors,
)
from hessblocks.curvature.losses.batches import Batch, Batches, unpack
from hessblocks.curvature.losses.lazy_logits import (
    LogitsUsed,
    Readout,
    defer_logits,
    readout_of,
    rows_together,
)
from hessblocks.curvature.losses.loss_node import make_loss_node
from hessblocks.curvature.losses.padding import PaddingWarning, TextPositions, check_packing
from hessblocks.curvature.losses.row_losses import (
    CrossEntropy,
    causal_labels,
    causal_targets,
    given_labels,
)
from hessblocks.curvature.losses.torch_losses import check_task, is_convex, loss_of
