"""Matrix-free curvature of any model: H, its outer-product and functional parts, group by group."""

from hessblocks.curvature.backend import AttentionBackendWarning
from hessblocks.curvature.groups import ParameterGroup, ParameterView
from hessblocks.curvature.layouts import parameter_groups
from hessblocks.curvature.norms import group_norms
from hessblocks.curvature.operators import Functional, Hessian, OuterProduct
from hessblocks.curvature.problem import Problem
from hessblocks.curvature.products import PARTS, Part

__all__ = [
    "PARTS",
    "AttentionBackendWarning",
    "Functional",
    "Hessian",
    "OuterProduct",
    "ParameterGroup",
    "ParameterView",
    "Part",
    "Problem",
    "group_norms",
    "parameter_groups",
]
