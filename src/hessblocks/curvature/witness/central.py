"""Central differences of a function and of its gradient, with error estimates.

Letters: φ the function, g its gradient, H its Hessian, z a direction, h a step, ε the machine
epsilon of a dtype. D(h) = (φ(θ + h z) − φ(θ − h z)) / 2h has errors of order h² and ε/h. The
extrapolation (4 D(h) − D(2h)) / 3 has an error of order h⁴. If D(h) and D(2h) agree, h is neither
too long (a kink within h) nor too short (rounding).

Source: Richardson extrapolation; Nocedal and Wright, Numerical Optimization, section 8.1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

ByName = Mapping[str, Float[Tensor, "..."]]
Verdict = Literal["right", "wrong", "unclear"]
Gradient = dict[str, Float[Tensor, "..."]]
At = Callable[[ByName, bool], tuple[float, Gradient]]
"""Maps parameters, and whether g is wanted, to φ and g; a missing gradient is zeros."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}
"""Largest relative gap of a right derivative, by dtype; half precision: 1/3."""
LADDER = (1.0, 1 / 8, 1 / 64, 8.0, 64.0)
"""Steps in units of ε^⅓, tried in this order until all derivatives are found right."""
ERROR_FACTOR = 2.0
"""The gap of a right derivative may be this many estimated errors of the difference."""
ROUNDED = 8.0
"""Rounding error of a sum, in units of ε."""
MAX_RELATIVE_ERROR = 0.1
"""Largest relative error of a difference for the verdict `right`; above it, `unclear`."""
CONFIRMING_FACTOR = 2.0
"""The gaps of two steps confirm a wrong derivative if they differ at most by this factor. Gaps from
rounding differ by 8."""
SETTLING_ERROR = 1e-3
"""A step with at most this relative error may settle the verdict `right` against other steps."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of one derivative with finite differences."""

    found: float
    """Value by autograd: ⟨g, z⟩, or ‖H z‖."""
    expected: float
    """Value by finite differences."""
    gap: float
    """Norm of the difference between both."""
    error: float
    """Estimated error of the finite differences."""
    tolerance: float
    """Allowed gap relative to `scale`, besides the error."""

    @property
    def scale(self) -> float:
        """Larger absolute value of `found` and `expected`."""
        return max(abs(self.found), abs(self.expected))

    @property
    def verdict(self) -> Verdict:
        """`right`, `wrong`, or `unclear` if the differences are too inaccurate in this dtype."""
        if not self.gap <= self.tolerance * self.scale + ERROR_FACTOR * self.error:
            return "wrong"
        return "right" if self.error <= MAX_RELATIVE_ERROR * self.scale else "unclear"

    @property
    def settled(self) -> bool:
        """Whether the verdict is `right` and the difference accurate enough to end the search."""
        allowed = max(self.tolerance, SETTLING_ERROR) * self.scale
        return self.verdict == "right" and self.error <= allowed


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Finite differences along one direction z, at one step h."""

    slope: float
    """dφ along z."""
    slope_error: float
    """Estimated error of `slope`."""
    rows: Gradient
    """H z by parameter name; empty if gradients were not wanted."""
    errors: Gradient
    """Estimated errors of the entries of `rows`."""
    rounding: float
    """ε / h: factor from |g| to the rounding error of `rows`."""
    tolerance: float
    """Relative tolerance of comparisons."""


def compare_slopes(slope: float, differences: Differences) -> Agreement:
    """Compare ⟨g, z⟩ with the slope of the differences."""
    return Agreement(
        found=slope,
        expected=differences.slope,
        gap=abs(slope - differences.slope),
        error=differences.slope_error,
        tolerance=differences.tolerance,
    )


def compare_rows(
    entries: Callable[[ByName], Float[Tensor, "..."]],
    product: ByName,
    gradient: ByName,
    differences: Differences,
) -> Agreement:
    """Compare H z of some entries with differences of the gradient.

    Args:
        entries: selects the entries to compare, as one vector, from tensors by name.
        product: H z.
        gradient: g.
        differences: the differences.

    Returns:
        Norms of both, and of their difference.
    """
    rows, expected = entries(product).double(), entries(differences.rows).double()
    rounding = ROUNDED * differences.rounding * float(entries(gradient).double().norm())
    return Agreement(
        found=float(rows.norm()),
        expected=float(expected.norm()),
        gap=float((rows - expected).norm()),
        error=float(entries(differences.errors).double().norm()) + rounding,
        tolerance=differences.tolerance,
    )


def direction(parameters: ByName, names: Mapping[str, object], seed: int) -> Gradient:
    """Draw z: normal numbers times the root mean square of each tensor, for equal relative steps.

    Args:
        parameters: θ by name.
        names: names of the parameters where z is not zero.
        seed: seed of the draw.

    Returns:
        z by name, shaped as the parameters.
    """
    sizes = {name: float(parameters[name].double().square().mean().sqrt()) for name in names}
    usual = sum(sizes.values()) / max(1, len(sizes)) or 1.0
    draw, z = torch.Generator().manual_seed(seed), {}
    for name, size in sizes.items():
        like = parameters[name]
        normal = torch.randn(like.shape, generator=draw, dtype=torch.float64).to(like)
        z[name] = normal * (size or usual)
    return z


def moved(parameters: ByName, along: ByName, step: float) -> Gradient:
    """Compute θ + step · z, without gradient history."""
    return {n: p + step * along[n] if n in along else p for n, p in parameters.items()}


def compare_at_steps(
    at: At,
    parameters: ByName,
    along: ByName,
    compare: Callable[[Differences], Sequence[Agreement]],
    *,
    gradients: bool,
) -> list[Agreement]:
    """Compare derivatives with differences at the steps of `LADDER`, until all are right.

    If a kink is nearer than h, D(h) and D(2h) may agree on a wrong value; a shorter step avoids the
    kink. A part that computes in a narrower dtype has larger rounding errors than estimated. So a
    derivative is `wrong` only if no accurate step finds it right, and two steps find similar gaps.

    Args:
        at: computes φ and g.
        parameters: θ by name.
        along: z by name.
        compare: compares all derivatives with the differences of one step.
        gradients: whether to compute differences of g, too.

    Returns:
        The decisive comparison of each derivative.

    Cost: four gradients per step, or four values.
    """
    steps: list[Sequence[Agreement]] = []
    eps = max(torch.finfo(p.dtype).eps for p in parameters.values())
    for factor in LADDER:
        step = factor * eps ** (1 / 3)
        steps.append(compare(_at_step(at, parameters, along, step, gradients=gradients, eps=eps)))
        best = [_best(history) for history in zip(*steps, strict=True)]
        if all(comparison.settled for comparison in best):
            break
    return best


def _best(history: Sequence[Agreement]) -> Agreement:
    """Choose the first settled comparison, else that of least error if another step confirms it."""
    for comparison in history:
        if comparison.settled:
            return comparison
    best = min(history, key=lambda comparison: comparison.error)
    gaps = [comparison.gap for comparison in history if comparison is not best]
    low, high = best.gap / CONFIRMING_FACTOR, best.gap * CONFIRMING_FACTOR
    borne_out = any(low <= gap <= high for gap in gaps)
    return best if borne_out or not best.gap > 0 else replace(best, error=max(best.error, best.gap))


def _at_step(
    at: At, parameters: ByName, along: ByName, step: float, *, gradients: bool, eps: float
) -> Differences:
    single, largest = _difference(at, parameters, along, step, gradients=gradients)
    double, _ = _difference(at, parameters, along, 2 * step, gradients=gradients)
    idle = single[0] == double[0] == 0 and step >= max(LADDER) * eps ** (1 / 3)
    return Differences(
        slope=(4 * single[0] - double[0]) / 3,
        slope_error=0 if idle else abs(single[0] - double[0]) + ROUNDED * eps * largest / step,
        rows={n: (4 * d - double[1][n]) / 3 for n, d in single[1].items()},
        errors={n: d - double[1][n] for n, d in single[1].items()},
        rounding=eps / step,
        tolerance=max(TOLERANCE.get(p.dtype, 1 / 3) for p in parameters.values()),
    )


def _difference(
    at: At, parameters: ByName, along: ByName, step: float, *, gradients: bool
) -> tuple[tuple[float, Gradient], float]:
    """Compute the central differences of φ and of g, and the largest |φ|."""
    right, ahead = at(moved(parameters, along, step), gradients)
    left, behind = at(moved(parameters, along, -step), gradients)
    rows = {n: (g.double() - behind[n].double()) / (2 * step) for n, g in ahead.items()}
    return ((right - left) / (2 * step), rows), max(abs(right), abs(left))


def inner(left: ByName, right: ByName) -> float:
    """Compute the inner product over the names in both; in float64."""
    return sum(float((left[n].double() * t.double()).sum()) for n, t in right.items() if n in left)
