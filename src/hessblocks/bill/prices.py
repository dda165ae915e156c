"""Price of a change: its quadratic forecast, standard error, and whether the forecast is trusted.

Letters: U pieces of the data, x contribution of a piece to a sum.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from hessblocks.linalg import Estimate, student_factor
from hessblocks.storage import Tabular

NOT_REACHED = "not reached: no sampled gradient of the text reaches it"
MOST_NATS = 0.1
"""Largest trusted forecast, in nats per token (docs/price.md has the measurements)."""
MOST_CHANGED = 0.35
"""Largest ‖Δ‖ / ‖w‖ of a weight for a trusted forecast."""
APART = 3.0
"""If full form and diagonal differ by more standard errors, signs of Δ do not count as random."""
FEWEST_PIECES = 4
"""Fewest pieces for which Student's t has a variance; fewer pieces get the factor of 4."""
SQUARES = 10
"""Factor 1 + SQUARES · relative variance for the error of a sum of squares (fitted): three errors
then cover 99 % of sums of 32 squared normal numbers, 97 to 98 % if their widths differ."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Price(Tabular):
    """Expected KL divergence of a change, in nats per token for the cross-entropies."""

    name: str
    """Name of the change, or the number of changes that are made together."""
    place: str
    """Weight or group that is changed."""
    how: str
    """Description of the edit, such as `3 bits`."""
    bytes: float | None
    """Bytes after rounding, as the edit counts them; None if the change does not round."""
    size: int
    """Number of entries that may change."""
    relative_size: float
    """‖Δ‖ / ‖w‖, the largest over its weights."""
    forecast: Estimate
    """½ ΔᵀH_oΔ, a weighted mean of `full` and `diagonal`; its error covers samples, data, signs. Of
    activations, `diagonal` as attention responds (`hessblocks.bill.responses`) and the loss grows
    (`hessblocks.bill.secant.with_growth`)."""
    full_share: float
    """Weight of `full` in the forecast: 1 except for rounding; `diagonal` has the rest."""
    diagonal: Estimate
    """½ Σ diag(H_o) Δ²."""
    full: Estimate | None = None
    """½ ΔᵀH_oΔ; None if it was not computed, as `cross` and `gradient`."""
    cross: Estimate | None = None
    """Part of `full` from pairs of different changes; 0 for a single change."""
    gradient: Estimate | None = None
    """∇L·Δ, the first-order change of the loss."""

    reached: bool = True
    """False if every sampled gradient of a changed weight is 0, as of experts that no token of the
    text is sent to: then the forecast of 0 says nothing."""
    secant: str = ""
    """How the divergence on the way to the change differs from a quadratic; empty if it does not,
    or if it was not measured."""

    limits: ClassVar[tuple[float, float]] = MOST_NATS, MOST_CHANGED
    """Largest trusted forecast and `relative_size`."""

    @property
    def bits(self) -> float | None:
        """Bits per entry after rounding; None if the change does not round."""
        return None if self.bytes is None else 8 * self.bytes / self.size

    @property
    def outside(self) -> str:
        """Reason why the forecast is not trusted; empty if it is."""
        if not self.reached:
            return NOT_REACHED
        nats, changed = self.limits
        if self.forecast.value > nats:
            return f"forecast above {nats:g} nats"
        if self.relative_size > changed:
            return f"weight changed by more than {changed:.0%} of its norm"
        if not self.forecast.standard_error <= self.forecast.value:  # nor nan
            return "error above the forecast"
        return self.secant

    @property
    def trusted(self) -> bool:
        """True if the forecast is trusted."""
        return not self.outside

    def to_rows(self) -> list[dict[str, Any]]:
        """Build one row: forecast, diagonal, full, cross and gradient, each with its error."""
        names = "name", "place", "how", "bits", "bytes", "size", "relative_size", "full_share"
        about = {name: getattr(self, name) for name in names}
        numbers: dict[str, float] = {}
        for name in ("forecast", "diagonal", "full", "cross", "gradient"):
            if estimate := getattr(self, name):
                numbers |= {name: estimate.value, f"{name}_error": estimate.standard_error}
        return [{**about, **numbers, "outside": self.outside}]

    def __str__(self) -> str:
        """Print the forecast with its error, and the reason if it is not trusted."""
        if not self.reached:
            return f"{self.name}: {self.outside}"
        value = f"{self.forecast.value:.3g} ± {self.forecast.standard_error:.1g} nats"
        return f"{self.name}: {value}" + (f" (outside: {self.outside})" if self.outside else "")


def weight_of_full(diagonal: float, full: float, signs: float, samples: int) -> float:
    """Compute the weight of the full form against the diagonal, by inverse variances.

    The full form is a mean of D squares; its variance is 2/D of its square. The diagonal leaves out
    Σ_{i≠j} Δ_i H_ij Δ_j / 2. If the signs of Δ are random, as in rounding, this has mean 0 and
    variance `signs`. A difference of more than three errors shows that they are not random.

    Args:
        diagonal: ½ Σ diag(H_o) Δ².
        full: ½ ΔᵀH_oΔ.
        signs: ½ Σ (Δ_i H_ij Δ_j)².
        samples: number of samples D.

    Returns:
        Weight from 0 to 1.
    """
    noise = 2 / samples * diagonal**2
    left_out = max(signs, (full - diagonal) ** 2 - APART**2 * noise)
    return left_out / (left_out + noise) if noise else 1.0


def ratio_estimate(
    values: Float[Tensor, " U"], shares: Float[Tensor, " U"], probes: int, *, square: bool = True
) -> Estimate:
    """Sum values over the pieces of the data, with a standard error from their spread.

    With s the share of the tokens and t = Σ x, the variance is U/(U−1) Σ (x − s t)², as for a ratio
    estimator. The error is multiplied by Student's factor, and for squares by 1 + 10 r with r the
    relative variance: a low sum of squares has a low spread too, and pieces differ.

    Args:
        values: x of each piece.
        shares: s of each piece.
        probes: number of samples, for the result.
        square: whether the values are squares of random numbers.

    Returns:
        The sum and its standard error.
    """
    total, count = float(values.sum()), len(values)
    variance = float((values - shares * total).square().sum()) * count / (count - 1)
    error = math.sqrt(variance) * student_factor(max(count, FEWEST_PIECES))
    if square and total:
        error *= 1 + SQUARES * variance / total / total  # infinite rather than an overflow
    return Estimate(value=total, standard_error=error, probes=probes)
