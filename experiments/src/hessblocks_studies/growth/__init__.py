"""How norms of Hessian blocks grow with data, weights and depth: points, fits, summaries."""

from hessblocks.studies.growth.addition_model import TOKENS, addition_model, weight_size
from hessblocks.studies.growth.fits import Growth, fit_growth
from hessblocks.studies.growth.growth_points import (
    CURRENT,
    GROUPS,
    DrawSettings,
    GrowthSettings,
    Size,
    draws,
    growth_rows,
    growth_study,
    logspace,
    one_layer,
    targeted,
)
from hessblocks.studies.growth.growth_summary import (
    Expected,
    apart,
    curves_panel,
    growth_summary,
    with_guides,
)
