"""Gauss-Newton (GGN) blocks from sampled gradients, and Fisher matrices."""

from hessblocks.curvature.sampled.fisher import EmpiricalFisher, MonteCarloFisher
from hessblocks.curvature.sampled.grams import Sampling, gram_matrices, plan_samples, root_is_known
from hessblocks.curvature.sampled.one_pass import (
    Gradients,
    SampledPass,
    plan_passes,
    sampled_passes,
)
