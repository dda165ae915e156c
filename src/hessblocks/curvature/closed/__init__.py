"""Second derivatives of single operations in closed form, swapped in while products are taken."""

from hessblocks.curvature.closed.accumulate import Sum, adding, sum_of, wanted
from hessblocks.curvature.closed.eager import swap_eager
from hessblocks.curvature.closed.reentrant import differentiable_checkpoints
from hessblocks.curvature.closed.shared import Shared
from hessblocks.curvature.closed.swap import (
    ClosedForms,
    spell_weight_norms,
    swap_activations,
)
from hessblocks.curvature.closed.watch import Watch, watching
