"""Student's t and Fisher's F, for error bars from few points (scipy is no dependency)."""

from __future__ import annotations

import math


def student_quantile(probability: float, freedom: float) -> float:
    """The t with P(T ≤ t) = `probability` for Student's T of `freedom` degrees.

    Args:
        probability: 0.5 to below 1.
        freedom: above 0.

    Returns:
        The quantile, to about 1e-9 of itself.
    """
    assert 0.5 <= probability < 1
    low, high = 0.0, 1.0
    while _student_below(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if _student_below(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def fisher_tail(ratio: float, above: float, below: float) -> float:
    """P(F > ratio) for Fisher's F of `above` and `below` degrees of freedom."""
    if ratio <= 0:
        return 1.0
    return incomplete_beta(below / (below + above * ratio), below / 2, above / 2)


def _student_below(t: float, freedom: float) -> float:
    return 1 - incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), the regularised incomplete beta function.

    Args:
        x: 0 to 1.
        a: above 0.
        b: above 0.

    Source: continued fraction of the NIST handbook, 8.17.22, by Lentz's method.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front + a * math.log(x) + b * math.log1p(-x)) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)) with NIST's coefficients d."""
    tiny = 1e-300
    value = c = 1.0
    d = 0.0
    for step in range(1, 500):
        m, odd = divmod(step, 2)
        if odd:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + numerator * d or tiny)
        c = 1 + numerator / c or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value
