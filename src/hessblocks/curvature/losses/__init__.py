"""Batches in one form, and the losses of their rows as functions of the logits."""

from hessblocks.curvature.losses.batches import Batch, Batches, unpack
from hessblocks.curvature.losses.row_losses import (
    CrossEntropy,
    Differentiated,
    Idle,
    LossFunction,
    callable_loss,
    causal_targets,
    given_labels,
)
from hessblocks.curvature.losses.torch_losses import (
    LOSSES,
    as_module,
    check_loss,
    check_task,
    torch_loss,
)
