"""H_o of all blocks at once from gradients of random combinations of the logits, no second derivative taken."""

from hessblocks.curvature.sampled.grams import (
    GramMatrices,
    Sampling,
    gram_matrices,
    plan_samples,
    root_is_known,
)

__all__ = ["GramMatrices", "Sampling", "gram_matrices", "plan_samples", "root_is_known"]
