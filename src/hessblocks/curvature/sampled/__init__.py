"""H_o of all blocks at once from gradients of random combinations of the logits, and Fisher matrices of labels, given or drawn."""

from hessblocks.curvature.sampled.fisher import EmpiricalFisher, MonteCarloFisher
from hessblocks.curvature.sampled.grams import (
    GramMatrices,
    Sampling,
    gram_matrices,
    plan_samples,
    root_is_known,
)
