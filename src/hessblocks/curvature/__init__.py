"""Matrix-free curvature (Hessian, Gauss-Newton, Fisher) of any model, by parameter group."""

from hessblocks.conventions import PARTS, Part
from hessblocks.curvature.attention import registered_attention, second_order_attention
from hessblocks.curvature.check_derivatives import DerivativeCheck, check_derivatives
from hessblocks.curvature.columns import ColumnSquares, check_probes, column_squares
from hessblocks.curvature.cost import SAMPLE, WHOLE_PRODUCT, Cost, Work, decide
from hessblocks.curvature.exact import exact_attention_curvature, exact_last_block
from hessblocks.curvature.frobenius_norms import GroupNorms, group_norms, heterogeneity, norm_rows
from hessblocks.curvature.groups import (
    ParameterGroup,
    ParameterView,
    UnknownRoleWarning,
    custom_groups,
    merge,
    overlap,
    parameter_groups,
    plain_model,
    plain_name,
    select_groups,
    whole,
)
from hessblocks.curvature.losses import (
    Batch,
    BatchLoss,
    CrossEntropy,
    Differentiated,
    LossFunction,
    PaddingWarning,
    causal_labels,
)
from hessblocks.curvature.map import CurvatureMap, combine_columns, combine_samples, curvature_map
from hessblocks.curvature.model_state import Form, checksums, evaluation_mode, exclusive, form_of
from hessblocks.curvature.products import (
    AttentionBackendWarning,
    AuxiliaryLossWarning,
    DerivativeWarning,
    Functional,
    Hessian,
    OuterProduct,
    PrecisionWarning,
    Problem,
    RepeatabilityWarning,
    check_problem,
    make_plan,
)
from hessblocks.curvature.sampled import (
    EmpiricalFisher,
    Gradients,
    MonteCarloFisher,
    SampledPass,
    Sampling,
    gram_matrices,
    plan_passes,
    plan_samples,
    root_is_known,
    sampled_passes,
)
from hessblocks.statistics import Heterogeneity

__all__ = [
    "PARTS",
    "AttentionBackendWarning",
    "AuxiliaryLossWarning",
    "Cost",
    "CurvatureMap",
    "DerivativeCheck",
    "DerivativeWarning",
    "EmpiricalFisher",
    "Functional",
    "Hessian",
    "Heterogeneity",
    "MonteCarloFisher",
    "OuterProduct",
    "PaddingWarning",
    "ParameterGroup",
    "ParameterView",
    "Part",
    "PrecisionWarning",
    "Problem",
    "RepeatabilityWarning",
    "UnknownRoleWarning",
    "check_derivatives",
    "curvature_map",
    "custom_groups",
    "exact_attention_curvature",
    "exact_last_block",
    "group_norms",
    "parameter_groups",
    "second_order_attention",
    "select_groups",
]
