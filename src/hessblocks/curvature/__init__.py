"""Matrix-free curvature of any model: H, its outer-product and functional parts, group by group."""

from hessblocks.curvature.backend import AttentionBackendWarning
from hessblocks.curvature.custom import custom_groups, select_groups
from hessblocks.curvature.grouping import parameter_groups
from hessblocks.curvature.groups import ParameterGroup, ParameterView
from hessblocks.curvature.last_block import exact_attention_curvature
from hessblocks.curvature.map import CurvatureMap, Heterogeneity, curvature_map
from hessblocks.curvature.norms import group_norms
from hessblocks.curvature.operators import Functional, Hessian, OuterProduct
from hessblocks.curvature.problem import Problem
from hessblocks.curvature.products import PARTS, Part
from hessblocks.curvature.repeatable import RepeatabilityWarning

__all__ = [
    "PARTS",
    "AttentionBackendWarning",
    "CurvatureMap",
    "Functional",
    "Hessian",
    "Heterogeneity",
    "OuterProduct",
    "ParameterGroup",
    "ParameterView",
    "Part",
    "Problem",
    "RepeatabilityWarning",
    "curvature_map",
    "custom_groups",
    "exact_attention_curvature",
    "group_norms",
    "parameter_groups",
    "select_groups",
]
