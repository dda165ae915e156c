"""Second derivatives of single operations in closed form, swapped in while products are taken."""

from hessblocks.curvature.closed.accumulate import Sum, adding, sum_of, wanted
from hessblocks.curvature.closed.process_wide import Shared, differentiable_checkpoints, swap_eager
from hessblocks.curvature.closed.swap import (
    ClosedForms,
    spell_weight_norms,
    spelled,
    swap_activations,
)
from hessblocks.curvature.closed.watch import Watch, watching
