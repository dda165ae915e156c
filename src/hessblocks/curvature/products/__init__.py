"""Hessian-vector, Gauss-Newton (GGN) and H_f products, one pass over the data at a time."""

from hessblocks.curvature.products.calling import AuxiliaryLossWarning
from hessblocks.curvature.products.derivatives import (
    DerivativeWarning,
    check_guard,
    compare_derivatives,
)
from hessblocks.curvature.products.distributed import LocalEntries, gradients
from hessblocks.curvature.products.forward import (
    AttentionBackendWarning,
    differentiable_once,
    uncompiled,
)
from hessblocks.curvature.products.operators import (
    CurvatureOperator,
    Functional,
    Hessian,
    OuterProduct,
    check_problem,
    groups_of,
)
from hessblocks.curvature.products.passes import PassPlan, make_plan
from hessblocks.curvature.products.problem import Problem
from hessblocks.curvature.products.repeatability import RepeatabilityWarning
from hessblocks.curvature.products.totals import (
    HessianBlock,
    PrecisionWarning,
    say_precision,
    squared_products,
)
from hessblocks.curvature.witness import readable_errors
