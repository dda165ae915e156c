"""Parameter groups: named sets of entries of a model's parameters."""

from hessblocks.curvature.groups.roles import (
    LEVELS,
    UnknownRoleWarning,
    custom_groups,
    merge,
    parameter_groups,
    select_groups,
)
from hessblocks.curvature.groups.views import (
    ParameterGroup,
    ParameterView,
    misfit,
    overlap,
    plain_model,
    plain_name,
    whole,
)
