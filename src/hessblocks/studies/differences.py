"""Two blocks compared over the seeds that both have, and what the difference decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hessblocks.studies.figure import mean_and_error
from hessblocks.studies.point import Scalar
from hessblocks.studies.statistics import student_quantile

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
    """How many."""

    def above(self, limit: float) -> bool | None:
        """Whether it is above a limit; None where seeds are too few or disagree (95 %, Student's t)."""
        if self.seeds < 2:
            return None
        reach = student_quantile(0.975, self.seeds - 1) * self.error
        return None if abs(self.mean - limit) < reach else self.mean > limit

    def text(self, unit: str, digits: int = 3) -> str:
        """Mean, error and seeds in words."""
        if self.seeds < 2:
            return f"{self.mean:+.{digits}f} {unit} (1 seed)"
        return f"{self.mean:+.{digits}f} ± {self.error:.{digits}f} {unit} ({self.seeds} seeds)"


def difference(values: Values, first: str, second: str) -> Difference | None:
    """Value of `first` minus that of `second`, over common seeds.

    Args:
        values: of each block and seed; infinite where a run diverged.
        first: name of a block.
        second: name of another.

    Returns:
        The difference; None where there is no common seed, or one of them diverged.
    """
    common = sorted(set(values.get(first, {})) & set(values.get(second, {})), key=str)
    gaps = [values[first][seed] - values[second][seed] for seed in common]
    if not gaps or any(gap != gap or abs(gap) == float("inf") for gap in gaps):
        return None
    mean, error = mean_and_error(gaps)
    return Difference(mean=mean, error=error, seeds=len(gaps))


def exceeds(found: Difference | None, limit: float) -> bool | None:
    """Whether a difference is above a limit; None where it is undecided or there is none."""
    return None if found is None else found.above(limit)


def shown(found: Difference | None, unit: str, digits: int = 3) -> str:
    """The difference in words."""
    return "not finished, or diverged" if found is None else found.text(unit, digits)
