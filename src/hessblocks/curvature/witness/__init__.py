"""Independent checks of derivatives: central differences, a graph walk, torch's errors."""

from hessblocks.curvature.witness.central import (
    Agreement,
    ByName,
    Differences,
    Gradient,
    Verdict,
    compare_at_steps,
    compare_rows,
    compare_slopes,
    direction,
    inner,
)
from hessblocks.curvature.witness.failures import OTHER_OPERATIONS, named_in_errors, readable_errors
from hessblocks.curvature.witness.graph_walk import check_bypass, walk_graph
