"""Compare two blocks over common seeds: Student's t intervals and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import linear_regression
from typing import Any

from scipy import special

from hessblocks.statistics import mean_and_error
from hessblocks.storage import Scalar
from hessblocks_studies.engine import Check

UNDECIDED = "undecided, as its control is"
"""Behind the numbers of a verdict whose control's seeds do not decide."""
NORMAL = 1.96
"""Half the 95 % interval of a normal, in standard errors."""
Values = Mapping[str, Mapping[Scalar, float]]
"""Block or variant → {seed: value}."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean over seeds."""

    mean: float
    """Over seeds."""
    error: float
    """Its standard error."""
    seeds: int
    """Number of seeds; 0 if there is nothing to compare."""
    common: float = 0.0
    """Standard error of what all seeds have in common, such as a clock."""
    repetitions: int = 0
    """Over how many values that was measured; 0 where its error is a normal's, of 1 nothing is
    decided."""
    diverged: int = 0
    """Seeds of which one run diverged; the mean is then infinite."""
    who: str = ""
    """Block whose runs diverged."""

    def above(self, limit: float) -> bool | None:
        """Test whether it is above a limit; None where seeds are too few or disagree (95 %, t).

        Runs that diverge decide where they do so for every seed.

        Returns:
            The decision at 95 %.
        """
        if self.seeds < 2 or self.repetitions == 1 or 0 < self.diverged < self.seeds:
            return None
        if self.diverged:
            return self.mean > limit
        own = float(special.stdtrit(self.seeds - 1, 0.975)) * self.error
        clock = self.repetitions - 1
        shared = float(special.stdtrit(clock, 0.975)) if self.repetitions else NORMAL
        reach = math.hypot(own, shared * self.common)
        return None if abs(self.mean - limit) < reach else self.mean > limit

    def within(self, limit: float, around: float = 0.0) -> bool | None:
        """Test whether it is at most so far from a value; None where seeds are too few or disagree.

        Returns:
            The decision at 95 % on each side.
        """
        above, below = self.above(around + limit), self.above(around - limit)
        if above is True or below is False:
            return False
        return True if above is False and below is True else None

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
        error = math.hypot(self.error, self.common)
        return f"{mean} ± {error:.{digits}f} {unit} ({self.seeds} seeds)"

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
        return Check(fact=fact, expected=expected, ours=self.text(**shown), holds=holds)

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
        holds = self.within(limit, around)
        return Check(fact=fact, expected=expected, ours=self.text(**shown), holds=holds)


def difference(values: Values, first: str, second: str) -> Difference:
    """Value of `first` minus that of `second`, over common seeds.

    Args:
        values: values of each block and seed; infinite where a run diverged.
        first: name of a block.
        second: name of another.

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
    return Difference(
        mean=mean, error=error, seeds=len(gaps), diverged=len(diverged), who=who if diverged else ""
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
    why = UNDECIDED if control.holds is None else void
    ours = check.ours if check.ours.endswith(why) else f"{check.ours}; {why}"
    return replace(check, ours=ours, holds=None)
