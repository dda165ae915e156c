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

FEWEST_SEEDS = 3
"""With which a sequential rule begins."""
UNDECIDED = "undecided, as its control is"
"""Behind the numbers of a verdict whose control's seeds do not decide."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean over seeds."""

    mean: float
    """Over seeds."""
    error: float
    """Its standard error."""
    seeds: int
    """Number of seeds; 0 if there is nothing to compare."""
    freedom: float = 0.0
    """Degrees of freedom of the error; 0 for one less than there are seeds."""
    own: bool = False
    """Whether its error is that of its own runs, since no one variance fits all blocks."""
    common: float = 0.0
    """Standard error of what all seeds have in common, such as a clock."""
    common_freedom: float = math.inf
    """Degrees of freedom of that; of 0 nothing is decided."""
    diverged: int = 0
    """Seeds of which one run diverged; the mean is then infinite."""
    who: str = ""
    """Block whose runs diverged."""

    @property
    def whole(self) -> float:
        """The standard error of the mean, with what is common."""
        return math.hypot(self.error, self.common)

    @property
    def whole_freedom(self) -> float:
        """Degrees of freedom of `whole`, by Welch and Satterthwaite."""
        return welch(
            (self.error, self.freedom or self.seeds - 1), (self.common, self.common_freedom)
        )

    @property
    def known(self) -> bool:
        """Whether seeds are enough and agree on what diverged."""
        return self.seeds > 1 and self.common_freedom > 0 and self.diverged in (0, self.seeds)

    def reach(self, times: float = 1.0) -> float:
        """Half the width of the 95 % interval of the mean, so many times."""
        return times * float(special.stdtrit(self.whole_freedom, 1 - LEVEL / 2)) * self.whole

    def of_one_seed(self) -> float:
        """Half the width of the interval that holds the difference of one new seed in 95 %."""
        return self.reach(math.sqrt(self.seeds + 1))

    def p_value(self, *limits: float) -> float | None:
        """The two-sided chance of a mean as far from the nearest limit, if the truth were there.

        Runs that diverge decide where they do so for every seed.

        Args:
            *limits: on either side of which a verdict is another.

        Returns:
            The chance; None where seeds are too few or disagree.
        """
        if not self.known:
            return None
        far = min(abs(self.mean - limit) for limit in limits)
        if self.diverged or not self.whole:
            return 0.0 if far else 1.0
        return rounded(2 * float(special.stdtr(self.whole_freedom, -far / self.whole)))

    def above(self, limit: float) -> bool | None:
        """Test whether it is above a limit; None where seeds are too few or disagree (95 %, t).

        Returns:
            The decision at 95 %.
        """
        p_value = self.p_value(limit)
        return None if p_value is None or p_value > LEVEL else self.mean > limit

    def within(self, limit: float, around: float = 0.0) -> bool | None:
        """Test whether it is at most so far from a value; None where seeds are too few or disagree.

        Returns:
            The decision at 95 % on each side.
        """
        p_value = self.p_value(around - limit, around + limit)
        if p_value is None or p_value > LEVEL:
            return None
        return abs(self.mean - around) < limit

    def times(self, factor: float) -> Difference:
        """The same in a unit so many times smaller."""
        scaled = {name: factor * getattr(self, name) for name in ("mean", "error", "common")}
        return replace(self, **scaled)

    def text(self, unit: str = "nats", digits: int = 3, *, signed: bool = True) -> str:
        """Mean, error and seeds in words; a mean above 0 has a plus where it is `signed`."""
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
        """A fact that holds where the mean is above a limit, or where it is not.

        Args:
            fact: in a sentence.
            expected: its number or direction.
            limit: in the unit of the mean.
            above: whether the fact says "above the limit".
            **shown: unit, digits and signed of `text`.

        Returns:
            The fact beside the mean; undecided where seeds are too few or disagree.
        """
        verdict = self.above(limit)
        holds = None if verdict is None else verdict == above
        ours, p_value = self.text(**shown), self.p_value(limit)
        return Check(fact=fact, expected=expected, ours=ours, holds=holds, p_value=p_value)

    def matches(
        self, fact: str, expected: str, *, limit: float, around: float = 0.0, **shown: Any
    ) -> Check:
        """Judge a fact that holds where the mean is at most so far from a value, above or below.

        Args:
            fact: in a sentence.
            expected: the value and its tolerance in words, with the published number.
            limit: the tolerance.
            around: the value.
            **shown: unit, digits and signed of `text`.

        Returns:
            The fact beside the mean; undecided where seeds are too few or disagree.
        """
        ours, p_value = self.text(**shown), self.p_value(around - limit, around + limit)
        holds = self.within(limit, around)
        return Check(fact=fact, expected=expected, ours=ours, holds=holds, p_value=p_value)


def welch(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum, by Welch and Satterthwaite.

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
    """Value of `first` minus that of `second`, over common seeds.

    Its error is that of one run of the study, √(2 / seeds) times, where one variance fits all
    blocks; else Welch's, of both blocks alone. Beside what has the same value with every seed, as
    the bigram table has, it is that of the other block.

    Args:
        values: values of each block and seed; infinite where a run diverged.
        first: name of a block.
        second: name of another.
        residual: of more runs than `values` has; None for theirs.

    Returns:
        The difference; of no seeds where there is no common one, or runs of both diverged.
    """
    common = sorted(set(values.get(first, {})) & set(values.get(second, {})), key=str)
    gaps = [values[first][seed] - values[second][seed] for seed in common]
    lost = {gap for gap in gaps if not math.isfinite(gap)}
    if not gaps or len(lost) > 1 or any(map(math.isnan, lost)):
        return Difference(mean=math.nan, error=math.nan, seeds=0)
    mean, error = mean_and_error(gaps)
    diverged = [seed for seed, gap in zip(common, gaps, strict=True) if gap in lost]
    who = first if any(math.isinf(values[first][seed]) for seed in diverged) else second
    found = Difference(
        mean=mean, error=error, seeds=len(gaps), diverged=len(diverged), who=who if diverged else ""
    )
    exact = any(len({values[one][seed] for seed in common}) == 1 for one in (first, second))
    pooled = residual or pooled_error(values)
    if diverged or exact or pooled is None:
        return found
    if not pooled.fits:
        parts = [
            mean_and_error([values[one][seed] for seed in common])[1] for one in (first, second)
        ]
        freedom = welch(*((part, len(gaps) - 1) for part in parts))
        return replace(found, error=math.hypot(*parts), freedom=freedom, own=True)
    error = pooled.deviation * math.sqrt(2 / len(gaps))
    return replace(found, error=error, freedom=pooled.freedom)


def apart(one: Difference, other: Difference) -> Difference:
    """Subtract a difference of other runs, with other errors.

    Returns:
        The difference of differences, over the fewer seeds.
    """
    mean, seeds = one.mean - other.mean, min(one.seeds, other.seeds)
    if one.diverged or other.diverged:
        return Difference(mean=math.nan, error=math.nan, seeds=0)
    if seeds < 2:
        return Difference(mean=mean, error=math.nan, seeds=seeds)
    parts = [(each.whole, each.whole_freedom) for each in (one, other)]
    return Difference(
        mean=mean,
        error=math.hypot(*(error for error, _ in parts)),
        seeds=seeds,
        freedom=welch(*parts),
        own=one.own or other.own,
    )


def over_seeds(values: Mapping[Scalar, float]) -> Difference:
    """The mean over seeds of one block's own values, to be held against a limit.

    Args:
        values: {seed: value}, all finite.

    Returns:
        The mean; of no seeds where there is none.
    """
    mean, error = mean_and_error(list(values.values())) if values else (math.nan, math.nan)
    return Difference(mean=mean, error=error, seeds=len(values))


def slopes(curves: Mapping[Scalar, Mapping[float, float]]) -> dict[Scalar, float]:
    """The exponent b of y ∝ x^b, by least squares on logarithms, seed by seed.

    What a seed's measurements share shifts its curve and leaves its slope alone, so that the seeds'
    slopes tell the error where the same draw is measured at every x.

    Args:
        curves: seed → {x: y}, both positive; a y of 0 is left out.

    Returns:
        Seed → slope, of those with two places or more.
    """
    found = {}
    for seed, curve in curves.items():
        places = [(math.log(x), math.log(y)) for x, y in curve.items() if y > 0]
        if len(places) > 1:
            found[seed] = linear_regression(*zip(*places, strict=True)).slope
    return found


def gaps(above: Mapping[Scalar, float], below: Mapping[Scalar, float]) -> dict[Scalar, float]:
    """{seed: how far the first value is above the second}, of the seeds that have both."""
    return {seed: value - below[seed] for seed, value in above.items() if seed in below}


def line(places: Sequence[tuple[float, Difference]]) -> Difference:
    """The change of differences over a factor of ten, by least squares on log10 of their places.

    With c_i = (x_i − x̄) / Σ (x_j − x̄)² it is Σ c_i y_i. The differences are of different runs;
    where one error is pooled over all of them, its degrees of freedom are the slope's.

    Args:
        places: abscissa above 0 and difference.

    Returns:
        The slope; of no seeds where fewer than three differences are known.
    """
    known = [(math.log10(x), one) for x, one in places if one.known and not one.diverged]
    if len(known) < 3:
        return Difference(mean=math.nan, error=math.nan, seeds=0)
    middle = sum(x for x, _ in known) / len(known)
    squares = sum((x - middle) ** 2 for x, _ in known)
    weights = [(x - middle) / squares for x, _ in known]
    parts = [
        (weight * one.whole, one.whole_freedom)
        for weight, (_, one) in zip(weights, known, strict=True)
    ]
    pooled = len({round(freedom, 6) for _, freedom in parts}) == 1 and not known[0][1].own
    return Difference(
        mean=sum(weight * one.mean for weight, (_, one) in zip(weights, known, strict=True)),
        error=math.hypot(*(error for error, _ in parts)),
        seeds=min(one.seeds for _, one in known),
        freedom=parts[0][1] if pooled else welch(*parts),
        own=any(one.own for _, one in known),
    )


MOST_SEEDS = 8
"""At which a sequential rule ends, decided or not."""
EARLY = 0.02
"""p-value at which it ends before: looked at after every seed from the third to the eighth, one of
0.05 would be wrong too often."""


def undecided(found: Sequence[Difference], limit: float) -> bool:
    """Tell whether one more seed is due: an interval is neither inside the tolerance nor outside.

    Args:
        found: the differences that verdicts are about.
        limit: the tolerance, to both sides.

    Returns:
        True where one of them is open and has fewer than `MOST_SEEDS` seeds, and all have three.
    """
    if not found or any(one.seeds < FEWEST_SEEDS or not one.known for one in found):
        return False
    p_values = [one.p_value(-limit, limit) for one in found if one.seeds < MOST_SEEDS]
    return any(p_value is not None and p_value > EARLY for p_value in p_values)


def judged_by(control: Check, check: Check, void: str) -> Check:
    """Leave a check undecided where its control fails or a best rate is not inside its grid.

    Args:
        control: without which the check says nothing.
        check: a fact.
        void: what is said where the control fails.

    Returns:
        The check, or one that holds neither way.
    """
    if control.holds:
        return check
    return check.void(UNDECIDED if control.holds is None else void)
