"""Compare two blocks over common seeds: Student's t intervals and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression
from typing import Any

from scipy import special

from hessblocks.statistics import mean_and_error
from hessblocks.storage import Scalar
from hessblocks_studies.engine import Check
from hessblocks_studies.shared.pooled_errors import (
    LEVEL,
    Residual,
    Values,
    pooled_error,
    rounded,
)

UNDECIDED = "undecided, as its control is"
"""Note added to a check whose control is undecided."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Mean difference over seeds, with its error."""

    mean: float
    """Mean over seeds."""
    error: float
    """Standard error of the mean."""
    seeds: int
    """Number of seeds; 0 if there is nothing to compare."""
    freedom: float = 0.0
    """Degrees of freedom of the error; 0 means the number of seeds minus one."""
    own: bool = False
    """Whether the error comes from these runs alone, since the blocks have different variances."""
    common: float = 0.0
    """Standard error that all seeds share, such as that of a clock."""
    common_freedom: float = math.inf
    """Degrees of freedom of `common`; with 0 nothing is decided."""
    diverged: int = 0
    """Number of seeds with one diverged run; the mean is then infinite."""
    who: str = ""
    """Block with the diverged runs."""
    unlike: str = ""
    """Conditions in which the compared runs differ besides the block; the difference is void."""

    @property
    def whole(self) -> float:
        """Standard error of the mean, including `common`."""
        return math.hypot(self.error, self.common)

    @property
    def whole_freedom(self) -> float:
        """Degrees of freedom of `whole`, by Welch and Satterthwaite."""
        return welch(
            (self.error, self.freedom or self.seeds - 1), (self.common, self.common_freedom)
        )

    @property
    def known(self) -> bool:
        """Whether there are at least two seeds, and all or none diverged."""
        return self.seeds > 1 and self.common_freedom > 0 and self.diverged in (0, self.seeds)

    def reach(self, times: float = 1.0) -> float:
        """Compute `times` half the width of the 95 % interval of the mean."""
        return times * float(special.stdtrit(self.whole_freedom, 1 - LEVEL / 2)) * self.whole

    def of_one_seed(self) -> float:
        """Compute half the width of the 95 % prediction interval for one new seed."""
        return self.reach(math.sqrt(self.seeds + 1))

    def p_value(self, *limits: float) -> float | None:
        """Compute the two-sided p-value of the hypothesis that the mean is at the nearest limit.

        If the runs of every seed diverge, the p-value is 0.

        Args:
            *limits: values at which the verdict changes.

        Returns:
            The p-value; None if seeds are too few or disagree on divergence.
        """
        if not self.known:
            return None
        far = min(abs(self.mean - limit) for limit in limits)
        if self.diverged or not self.whole:
            return 0.0 if far else 1.0
        return rounded(2 * float(special.stdtr(self.whole_freedom, -far / self.whole)))

    def above(self, limit: float) -> bool | None:
        """Test whether the mean is above a limit (Student's t test at 95 %).

        Returns:
            The decision; None if undecided.
        """
        p_value = self.p_value(limit)
        return None if p_value is None or p_value > LEVEL else self.mean > limit

    def within(self, limit: float, around: float = 0.0) -> bool | None:
        """Test whether the mean is at most `limit` away from `around` (95 % on each side).

        Returns:
            The decision; None if undecided.
        """
        p_value = self.p_value(around - limit, around + limit)
        if p_value is None or p_value > LEVEL:
            return None
        return abs(self.mean - around) < limit

    def times(self, factor: float) -> Difference:
        """Multiply mean and errors by a factor, such as for another unit."""
        scaled = {name: factor * getattr(self, name) for name in ("mean", "error", "common")}
        return replace(self, **scaled)

    def text(self, unit: str = "nats", digits: int = 3, *, signed: bool = True) -> str:
        """Format mean, error, interval and seeds; if `signed`, positive numbers have a plus."""
        if self.unlike:
            return f"void, since the runs differ in {self.unlike}"
        if self.diverged:
            return f"{self.who} diverged in {self.diverged} of {self.seeds} seeds"
        if not self.seeds:
            return "not finished, or diverged"
        mean = f"{self.mean:{'+' if signed else ''}.{digits}f}"
        if self.seeds < 2:
            return f"{mean} {unit} (1 seed)"
        ends = [self.mean + side * self.reach() for side in (-1, 1) if self.known]
        shown = ", ".join(f"{end:{'+' if signed else ''}.{digits}f}" for end in ends)
        interval = f" [{shown}]" if ends else ""
        seeds = f"{self.seeds} seeds{', own error' if self.own else ''}"
        return f"{mean} ± {self.whole:.{digits}f}{interval} {unit} ({seeds})"

    def judged(
        self, fact: str, expected: str, *, limit: float = 0.0, above: bool = True, **shown: Any
    ) -> Check:
        """Judge a fact that holds if the mean is above a limit, or if it is not above.

        Args:
            fact: the fact, as a sentence.
            expected: the expected number or direction.
            limit: limit in the unit of the mean.
            above: whether the fact claims "above the limit".
            **shown: unit, digits and signed of `text`.

        Returns:
            The check; undecided if the test is, or seeds are too few or disagree.
        """
        verdict = self.above(limit)
        holds = None if verdict is None else verdict == above
        ours, p_value = self.text(**shown), self.p_value(limit)
        return Check(fact=fact, expected=expected, ours=ours, holds=holds, p_value=p_value)

    def matches(
        self, fact: str, expected: str, *, limit: float, around: float = 0.0, **shown: Any
    ) -> Check:
        """Judge a fact that holds if the mean is at most `limit` away from a value.

        Args:
            fact: the fact, as a sentence.
            expected: the value and its tolerance in words, with the published number.
            limit: the tolerance.
            around: the value.
            **shown: unit, digits and signed of `text`.

        Returns:
            The check; undecided if the test is, or seeds are too few or disagree.
        """
        ours, p_value = self.text(**shown), self.p_value(around - limit, around + limit)
        holds = self.within(limit, around)
        return Check(fact=fact, expected=expected, ours=ours, holds=holds, p_value=p_value)


def welch(*parts: tuple[float, float]) -> float:
    """Compute the degrees of freedom of a sum by the Welch-Satterthwaite equation.

    Args:
        *parts: standard error and degrees of freedom of each independent part.

    Returns:
        (Σ e²)² / Σ (e⁴ / ν).
    """
    below = sum(error**4 / freedom for error, freedom in parts if error)
    return sum(error**2 for error, _ in parts) ** 2 / below if below else math.inf


def difference(
    values: Values, first: str, second: str, residual: Residual | None = None
) -> Difference:
    """Compute the value of `first` minus that of `second`, over common seeds.

    If the blocks have one common variance, the standard error is √(2 / seeds) times the standard
    deviation of one run; otherwise Welch's error of the two blocks. If one block has the same value
    for all seeds, as the bigram table has, the error is that of the other block.

    Args:
        values: values of each block and seed; infinite if a run diverged.
        first: name of a block.
        second: name of another.
        residual: standard deviation of one run, from more runs than `values`; None: from `values`.

    Returns:
        The difference; 0 seeds if there is no common seed or runs of both blocks diverged.
    """
    common = sorted(set(values.get(first, {})) & set(values.get(second, {})), key=str)
    gaps = [values[first][seed] - values[second][seed] for seed in common]
    lost = {gap for gap in gaps if not math.isfinite(gap)}
    if not gaps or len(lost) > 1 or any(map(math.isnan, lost)):
        return Difference(mean=math.nan, error=math.nan, seeds=0)
    mean, error = mean_and_error(gaps)
    diverged = [seed for seed, gap in zip(common, gaps, strict=True) if gap in lost]
    who = first if any(math.isinf(values[first][seed]) for seed in diverged) else second
    result = Difference(
        mean=mean, error=error, seeds=len(gaps), diverged=len(diverged), who=who if diverged else ""
    )
    exact = any(len({values[name][seed] for seed in common}) == 1 for name in (first, second))
    pooled = residual or pooled_error(values)
    if diverged or exact or pooled is None:
        return result
    if not pooled.fits:
        parts = [
            mean_and_error([values[name][seed] for seed in common])[1] for name in (first, second)
        ]
        freedom = welch(*((part, len(gaps) - 1) for part in parts))
        return replace(result, error=math.hypot(*parts), freedom=freedom, own=True)
    error = pooled.deviation * math.sqrt(2 / len(gaps))
    return replace(result, error=error, freedom=pooled.freedom)


def combined(parts: Sequence[tuple[float, Difference]]) -> Difference:
    """Add differences that come from different runs, each times a weight.

    If their errors are one pooled error, the sum has its degrees of freedom.

    Args:
        parts: pairs of weight and difference.

    Returns:
        The sum, with the smallest number of seeds; 0 seeds if a difference is unknown or diverged,
        void if one is.
    """
    unlike = next((gap.unlike for _, gap in parts if gap.unlike), "")
    if unlike or not all(gap.known and not gap.diverged for _, gap in parts):
        return Difference(mean=math.nan, error=math.nan, seeds=0, unlike=unlike)
    errors = [(weight * gap.whole, gap.whole_freedom) for weight, gap in parts]
    own = any(gap.own for _, gap in parts)
    pooled = len({round(freedom, 6) for _, freedom in errors}) == 1 and not own
    return Difference(
        mean=sum(weight * gap.mean for weight, gap in parts),
        error=math.hypot(*(error for error, _ in errors)),
        seeds=min(gap.seeds for _, gap in parts),
        freedom=errors[0][1] if pooled else welch(*errors),
        own=own,
    )


def over_seeds(values: Mapping[Scalar, float]) -> Difference:
    """Average the values of one block over seeds, for comparison with a limit.

    Args:
        values: {seed: value}, all finite.

    Returns:
        The mean; 0 seeds if there are no values.
    """
    mean, error = mean_and_error(list(values.values())) if values else (math.nan, math.nan)
    return Difference(mean=mean, error=error, seeds=len(values))


def slopes(curves: Mapping[Scalar, Mapping[float, float]]) -> dict[Scalar, float]:
    """Fit the exponent b of y ∝ x^b by least squares on logarithms, seed by seed.

    An effect that a seed has at every x shifts its curve and does not change its slope. The slopes
    of the seeds thus show the error if each seed measures the same draw at every x.

    Args:
        curves: seed → {x: y}, both positive; points with y = 0 are left out.

    Returns:
        Seed → slope, for seeds with at least two points.
    """
    fitted = {}
    for seed, curve in curves.items():
        places = [(math.log(x), math.log(y)) for x, y in curve.items() if y > 0]
        if len(places) > 1:
            fitted[seed] = linear_regression(*zip(*places, strict=True)).slope
    return fitted


def gaps(above: Mapping[Scalar, float], below: Mapping[Scalar, float]) -> dict[Scalar, float]:
    """Subtract `below` from `above`, for the seeds that both have."""
    return {seed: value - below[seed] for seed, value in above.items() if seed in below}


def line(places: Sequence[tuple[float, Difference]]) -> Difference:
    """Fit the change of differences per factor of ten of x, by least squares on log10 x.

    The slope is Σ c_i y_i with c_i = (x_i − x̄) / Σ (x_j − x̄)².

    Args:
        places: pairs of x, above 0, and difference.

    Returns:
        The slope; 0 seeds if fewer than three differences are known.
    """
    finite = [(math.log10(x), gap) for x, gap in places if gap.known and not gap.diverged]
    if len(finite) < 3:
        return Difference(mean=math.nan, error=math.nan, seeds=0)
    middle = sum(x for x, _ in finite) / len(finite)
    squares = sum((x - middle) ** 2 for x, _ in finite)
    return combined([((x - middle) / squares, gap) for x, gap in finite])


def judged_by(control: Check, check: Check, void: str) -> Check:
    """Leave a check undecided if its control does not hold.

    Args:
        control: check that must hold for `check` to count.
        check: check of a fact.
        void: note if the control fails.

    Returns:
        The check, or an undecided copy.
    """
    if control.holds:
        return check
    return check.void(UNDECIDED if control.holds is None else void)
