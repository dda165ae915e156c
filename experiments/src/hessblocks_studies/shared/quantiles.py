"""Student's t and Fisher's F distribution, as scipy computes them."""

from __future__ import annotations


def student_quantile(probability: float, freedom: float) -> float:
    """Find the t with P(T ≤ t) = `probability` for Student's T of `freedom` degrees."""
    from scipy import special  # its import takes a third of a second

    return float(special.stdtrit(freedom, probability))


def fisher_tail(ratio: float, above: float, below: float) -> float:
    """Compute P(F > ratio) for Fisher's F of `above` and `below` degrees of freedom."""
    from scipy import special

    return float(special.fdtrc(above, below, max(ratio, 0.0)))
