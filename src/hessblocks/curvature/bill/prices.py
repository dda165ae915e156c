"""Price of a change: what the quadratic says, its errors, and whether it can be trusted.

Letters: U pieces of the data, x what a piece adds to a sum.
"""

import math
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg import Estimate, student_factor
from hessblocks.storage import Tabular

MOST_NATS = 0.1
"""Largest forecast at which the quadratic is trusted (docs/price.md has the measurements)."""
MOST_CHANGED = 0.35
"""Largest ‖Δ‖ / ‖w‖ of a weight at which it is."""
APART = 3.0
"""Errors between both forms from which on the signs of a rounding are not taken for random."""
FEWEST_PIECES = 4
"""Pieces below which Student's t has no variance; fewer get the factor of so many."""
SQUARES = 10
"""Widening of the error of a sum of squares, in relative variances (fitted): of 32 squared normal
numbers three errors then cover 99 %, and 97 to 98 % where these have unlike widths."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Price(Tabular):
    """Expected KL divergence of a change, in nats per token for the cross-entropies."""

    name: str
    """Name of the change, or the number of changes that are made together."""
    place: str
    """Weight or group that it changes."""
    how: str
    """Such as `3 bits`."""
    bits: float | None
    """Bits per entry that are left, scales not counted; None where it does not round."""
    size: int
    """Entries that may change."""
    relative_size: float
    """‖Δ‖ / ‖w‖, the largest of its weights."""
    forecast: Estimate
    """½ ΔᵀH_oΔ as far as both forms know it, with the error over samples, data and signs."""
    full_share: float
    """Weight of the full form in the forecast, 1 but for rounding; the rest is the diagonal's."""
    diagonal: Estimate
    """½ Σ diag(H_o) Δ²."""
    full: Estimate
    """½ ΔᵀH_oΔ."""
    cross: Estimate
    """Share of the full form that pairs of different changes add; 0 for a single change."""
    gradient: Estimate
    """∇L·Δ, what the loss itself changes by to first order."""

    @property
    def outside(self) -> str:
        """Why the quadratic is not trusted here; empty where it is."""
        if self.forecast.value > MOST_NATS:
            return f"forecast above {MOST_NATS:g} nats"
        if self.relative_size > MOST_CHANGED:
            return f"weight changed by more than {MOST_CHANGED:.0%} of its norm"
        return ""

    @property
    def trusted(self) -> bool:
        """True where the quadratic is trusted."""
        return not self.outside

    def to_rows(self) -> list[dict[str, Any]]:
        """Build one row: the forecast, both forms, the gradient's term, each with its error."""
        about = {
            name: getattr(self, name)
            for name in ("name", "place", "how", "bits", "size", "relative_size", "full_share")
        }
        numbers: dict[str, float] = {}
        for name in ("forecast", "diagonal", "full", "cross", "gradient"):
            found: Estimate = getattr(self, name)
            numbers |= {name: found.value, f"{name}_error": found.standard_error}
        return [{**about, **numbers, "outside": self.outside}]

    def __str__(self) -> str:
        """Say the forecast with its error, and where it ends."""
        said = f"{self.forecast.value:.3g} ± {self.forecast.standard_error:.1g} nats"
        return f"{self.name}: {said}" + (f" (outside: {self.outside})" if self.outside else "")


def weight_of_full(diagonal: float, full: float, signs: float, samples: int) -> float:
    """Weigh the full form against the diagonal, by inverse variances.

    The full form has the error of a mean of D squares, 2/D of its square. The diagonal leaves out
    Σ_{i≠j} Δ_i H_ij Δ_j / 2, whose mean is 0 and whose variance is `signs` where the signs of Δ are
    random, as those of rounding are. A difference beyond three errors says that they are not.

    Args:
        diagonal: ½ Σ diag(H_o) Δ².
        full: ½ ΔᵀH_oΔ.
        signs: ½ Σ (Δ_i H_ij Δ_j)².
        samples: D.

    Returns:
        From 0 to 1.
    """
    noise = 2 / samples * diagonal**2
    left_out = max(signs, (full - diagonal) ** 2 - APART**2 * noise)
    return left_out / (left_out + noise) if noise else 1.0


def ratio_estimate(
    values: Float[Tensor, " U"], shares: Float[Tensor, " U"], probes: int, *, square: bool = True
) -> Estimate:
    """Add up results over the pieces of the data; the error is estimated from the pieces.

    With s the share of the tokens and t = Σ x, the variance is U/(U−1) Σ (x − s t)², that of a
    ratio. It is widened by Student's factor, and for squares by 1 + 10 r with r the relative
    variance: a low sum of squares comes with a low spread, and pieces are unlike.

    Args:
        values: x of each piece.
        shares: s of each piece.
        probes: what was spent.
        square: whether the values are squares of random numbers.

    Returns:
        The sum.
    """
    total, count = float(values.sum()), len(values)
    variance = float((values - shares * total).square().sum()) * count / (count - 1)
    error = math.sqrt(variance) * student_factor(max(count, FEWEST_PIECES))
    if square and total:
        error *= 1 + SQUARES * variance / total**2
    return Estimate(value=total, standard_error=error, probes=probes)
