"""Central differences of a function and of its gradient, with their own error.

Letters: φ the function, g its gradient, H its Hessian, z a direction, h a step, ε the rounding of a
dtype. D(h) = (φ(θ + h z) − φ(θ − h z)) / 2h is off by h² and by ε/h. From D(h) and D(2h) follows
(4 D(h) − D(2h)) / 3, which is off by h⁴; that the two agree says that h is neither too long (a
kink on the way) nor too short (rounding).

Source: Richardson extrapolation; Nocedal and Wright, Numerical Optimization, section 8.1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Tensors = Mapping[str, Float[Tensor, "..."]]
Verdict = Literal["right", "wrong", "unclear"]
Gradient = dict[str, Float[Tensor, "..."]]
At = Callable[[Tensors, bool], tuple[float, Gradient]]
"""From parameters to φ, and to g where it is asked for; None of g stands as zeros."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}
"""Largest gap, as a share, that a right derivative may have; half precision: a third."""
LADDER = (1.0, 1 / 8, 1 / 64, 8.0, 64.0)
"""Steps that are tried, in units of ε^⅓, until all derivatives are found right."""
SURE = 2.0
"""Times its own error that a difference may be off."""
ROUNDED = 8.0
"""Roundings that a sum is off by."""
TELLING = 0.1
"""Error of a difference, as a share, above which it says nothing."""
ALIKE = 2.0
"""Times that the gaps of two steps may differ for both to be of the derivative; those of rounding
do by 8."""
SHARP = 1e-3
"""Error, as a share, up to which one step that agrees is enough against others that do not."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One derivative against its differences."""

    found: float
    """Value by autograd: ⟨g, z⟩, or ‖H z‖."""
    expected: float
    """Value by differences."""
    gap: float
    """Length of what lies between."""
    error: float
    """That differences may be off by."""
    tolerance: float
    """Share that is allowed besides."""

    @property
    def scale(self) -> float:
        """Larger of the two."""
        return max(abs(self.found), abs(self.expected))

    @property
    def verdict(self) -> Verdict:
        """Say `right`, `wrong`, or `unclear` where the differences are too rough for this dtype."""
        if not self.gap <= self.tolerance * self.scale + SURE * self.error:
            return "wrong"
        return "right" if self.error <= TELLING * self.scale else "unclear"

    @property
    def settled(self) -> bool:
        """True if it is right, and the difference sharp enough to decide against other steps."""
        return self.verdict == "right" and self.error <= max(self.tolerance, SHARP) * self.scale


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Differences along one direction."""

    slope: float
    """dφ along z."""
    slope_error: float
    """It may be off by that."""
    rows: Gradient
    """H z by parameter name; empty where gradients were not asked for."""
    errors: Gradient
    """Each entry of `rows` may be off by that."""
    rounding: float
    """ε / h: what a rounding of g is in `rows`."""
    tolerance: float
    """Share that is nothing."""


def compare_slopes(found: float, seen: Differences) -> Comparison:
    """Compare ⟨g, z⟩ with the slope of the differences."""
    return Comparison(
        found=found,
        expected=seen.slope,
        gap=abs(found - seen.slope),
        error=seen.slope_error,
        tolerance=seen.tolerance,
    )


def compare_rows(
    entries: Callable[[Tensors], Float[Tensor, "..."]],
    product: Tensors,
    gradient: Tensors,
    seen: Differences,
) -> Comparison:
    """Compare H z of some entries with differences of the gradient.

    Args:
        entries: some of those of all tensors.
        product: H z.
        gradient: g.
        seen: the differences.

    Returns:
        Norms, and the norm of what lies between.
    """
    found, expected = entries(product).double(), entries(seen.rows).double()
    rounding = ROUNDED * seen.rounding * float(entries(gradient).double().norm())
    return Comparison(
        found=float(found.norm()),
        expected=float(expected.norm()),
        gap=float((found - expected).norm()),
        error=float(entries(seen.errors).double().norm()) + rounding,
        tolerance=seen.tolerance,
    )


def epsilon(parameters: Tensors) -> float:
    """Return ε of the narrowest dtype."""
    return max(torch.finfo(p.dtype).eps for p in parameters.values())


def tolerance(parameters: Tensors) -> float:
    """Return the tolerance of the narrowest dtype; see `TOLERANCE`."""
    return max(TOLERANCE.get(p.dtype, 1 / 3) for p in parameters.values())


def direction(parameters: Tensors, names: Mapping[str, object], seed: int) -> Gradient:
    """Draw z: normal numbers times the root mean square of each tensor, so that all move alike.

    Args:
        parameters: θ by name.
        names: those that move.
        seed: seed of the draw.

    Returns:
        z by name, shaped as the parameters.
    """
    sizes = {name: float(parameters[name].double().square().mean().sqrt()) for name in names}
    usual = sum(sizes.values()) / max(1, len(sizes)) or 1.0
    draw = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(parameters[name].shape, generator=draw, dtype=torch.float64).to(
            parameters[name]
        )
        * (sizes[name] or usual)
        for name in names
    }


def moved(parameters: Tensors, along: Tensors, step: float) -> Gradient:
    """Compute θ + step · z, without gradient history."""
    return {n: p + step * along[n] if n in along else p for n, p in parameters.items()}


def compare_at_steps(
    at: At,
    parameters: Tensors,
    along: Tensors,
    compare: Callable[[Differences], Sequence[Comparison]],
    *,
    gradients: bool,
) -> list[Comparison]:
    """Compare derivatives with differences at the steps of `LADDER`, until all are right.

    A kink nearer than h is in D(h) and in D(2h), and they agree on what is no derivative; a shorter
    step does not see it. A part that computes in less than its dtype rounds more than is known. So
    a derivative is wrong only where no sharp step calls it right, and two steps find alike gaps.

    Args:
        at: φ and g.
        parameters: θ by name.
        along: z by name.
        compare: derivatives with the differences of one step, always as many.
        gradients: whether differences of g are wanted too.

    Returns:
        Of each derivative the comparison that decides.

    Cost: four gradients per step that is tried, or four values.
    """
    seen: list[Sequence[Comparison]] = []
    eps = epsilon(parameters)
    for factor in LADDER:
        step = factor * eps ** (1 / 3)
        seen.append(compare(_at_step(at, parameters, along, step, gradients=gradients, eps=eps)))
        best = [_best(history) for history in zip(*seen, strict=True)]
        if all(one.settled for one in best):
            break
    return best


def _best(history: Sequence[Comparison]) -> Comparison:
    """Choose the first settled comparison, else the best one, if another step agrees."""
    for one in history:
        if one.settled:
            return one
    best = min(history, key=lambda one: one.error)
    gaps = [one.gap for one in history if one is not best]
    borne_out = any(best.gap / ALIKE <= gap <= best.gap * ALIKE for gap in gaps)
    return best if borne_out or not best.gap > 0 else replace(best, error=max(best.error, best.gap))


def _at_step(
    at: At, parameters: Tensors, along: Tensors, step: float, *, gradients: bool, eps: float
) -> Differences:
    one, largest = _one(at, parameters, along, step, gradients=gradients)
    two, _ = _one(at, parameters, along, 2 * step, gradients=gradients)
    idle = one[0] == two[0] == 0 and step >= max(LADDER) * eps ** (1 / 3)
    return Differences(
        slope=(4 * one[0] - two[0]) / 3,
        slope_error=0 if idle else abs(one[0] - two[0]) + ROUNDED * eps * largest / step,
        rows={n: (4 * d - two[1][n]) / 3 for n, d in one[1].items()},
        errors={n: d - two[1][n] for n, d in one[1].items()},
        rounding=eps / step,
        tolerance=tolerance(parameters),
    )


def _one(
    at: At, parameters: Tensors, along: Tensors, step: float, *, gradients: bool
) -> tuple[tuple[float, Gradient], float]:
    """Compute the central differences of φ and of g, and the largest |φ|."""
    right, ahead = at(moved(parameters, along, step), gradients)
    left, behind = at(moved(parameters, along, -step), gradients)
    rows = {n: (g.double() - behind[n].double()) / (2 * step) for n, g in ahead.items()}
    return ((right - left) / (2 * step), rows), max(abs(right), abs(left))


def inner(left: Tensors, right: Tensors) -> float:
    """Take the inner product over the names of `right`."""
    return sum(float((left[n].double() * t.double()).sum()) for n, t in right.items() if n in left)
