"""Closed-form second derivatives of single operations, used while a graph is captured."""

from hessblocks.curvature.closed.accumulate import Sum, adding, graph_only, sum_of, wanted
from hessblocks.curvature.closed.process_wide import CountedContext, differentiable_checkpoints
from hessblocks.curvature.closed.softmax import DTYPES, LONG
from hessblocks.curvature.closed.swap import (
    ClosedForms,
    spell_weight_norms,
    spelled,
    swap_activations,
)
from hessblocks.curvature.closed.watch import Unplanned, Watch, watching
