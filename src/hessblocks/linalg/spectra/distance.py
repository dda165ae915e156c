"""How different two spectra are."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg.spectra.spectrum import MARGIN, NO_WEIGHT, Spectrum, default_broadening


def jensen_shannon_distance(
    a: Spectrum, b: Spectrum, *, broadening: float | None = None, points: int = 1024
) -> float:
    """Jensen-Shannon distance between two densities of eigenvalues, on a common grid.

    √(½ KL(p ‖ m) + ½ KL(q ‖ m)) with m = (p + q) / 2 and logarithms to base 2: a metric, 0 for equal
    and 1 for disjoint densities. Both are broadened alike. The noise of the probes adds to the
    distance: two runs with other seeds on one operator show how much.

    Args:
        a: one spectrum.
        b: the other.
        broadening: standard deviation of the normal density on each eigenvalue of both; None: 2 %
            of the range of the two together.
        points: of the common grid.

    Returns:
        The distance, in [0, 1].

    Source: Endres and Schindelin (2003).
    """
    seen = torch.cat([s.nodes[s.weights > NO_WEIGHT] for s in (a, b)])
    low, high = float(seen.min()), float(seen.max())
    width = default_broadening(low, high) if broadening is None else broadening
    margin = MARGIN * width
    grid = torch.linspace(low - margin, high + margin, points, dtype=torch.float64)
    p, q = (_shares(spectrum.density_on(grid, width)[0]) for spectrum in (a, b))
    middle = (p + q) / 2
    divergence = 0.5 * (_relative_entropy(p, middle) + _relative_entropy(q, middle))
    return math.sqrt(min(max(divergence, 0.0), 1.0))


def _shares(density: Float[Tensor, " points"]) -> Float[Tensor, " points"]:
    """The density as shares that sum to 1."""
    return density / density.sum()


def _relative_entropy(p: Float[Tensor, " points"], q: Float[Tensor, " points"]) -> float:
    """KL(p ‖ q) in bits; q is positive wherever p is."""
    return float((torch.xlogy(p, p) - torch.xlogy(p, q)).sum()) / math.log(2)
