"""Parameter groups: named sets of entries of a model's parameters."""

from hessblocks.curvature.groups.custom import custom_groups, select_groups
from hessblocks.curvature.groups.roles import UnknownRoleWarning, merge, parameter_groups
from hessblocks.curvature.groups.views import (
    ParameterGroup,
    ParameterView,
    check_disjoint,
    misfit,
    overlap,
    plain_model,
    plain_name,
    whole,
)
