"""Measure and fit the growth of Hessian blocks with data, weights and depth."""

from hessblocks_studies.growth.addition_model import TOKENS, addition_model, weight_size
from hessblocks_studies.growth.exact_norms import Norms, exact_norms
from hessblocks_studies.growth.fits import Growth, fit_growth
from hessblocks_studies.growth.growth_points import (
    CURRENT,
    GROUPS,
    GROWTH_COLUMNS,
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
from hessblocks_studies.growth.growth_summary import (
    Expected,
    apart,
    curves_panel,
    growth_summary,
    with_guides,
)
