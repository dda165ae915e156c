"""Tune learning rates, then run at the best: the points, and what voids a verdict about them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self, TypeVar

from hessblocks.storage import Row, Scalar
from hessblocks_studies.engine import Check, Rows
from hessblocks_studies.shared.gathering import grouped
from hessblocks_studies.shared.trained_points import (
    AT_RATE,
    BIGRAMS,
    TRAINED_COLUMNS,
    TrainedSettings,
)
from hessblocks_studies.shared.trained_summary import Runs

TUNING = "tuning"
"""The phase that chooses rates, or the end of its name."""
COUNTED = "runs"
"""The phase of the runs that count, where there is one alone."""
TUNING_SEED = 0
"""The runs have those from 1 on."""
FAR = 0.1
"""Nats by which a kind of what is run must be above the best kind to need no longer grid."""
TUNED_COLUMNS = (*TRAINED_COLUMNS, "phase", "learning_rate")


@dataclass(frozen=True, kw_only=True)
class TunedSettings(TrainedSettings):
    """A point of a study whose rates are tuned first: one model, or one reference."""

    phase: str
    """What it is for: a tuning, or runs that count."""
    label: str
    """What is tuned and judged: a block and what else tells it apart, or a reference."""

    @property
    def name(self) -> str:
        """The label, in a tuning with the rate."""
        return f"{self.label}{AT_RATE}{self.size.learning_rate:g}" if self.tuned else self.label

    def placed(self, rows: Sequence[Row]) -> list[Row]:
        """Rows of this point with its phase and rate."""
        own: Row = {"phase": self.phase, "learning_rate": self.size.learning_rate}
        return [{**row, **own} for row in rows]


S = TypeVar("S")
Make = Callable[[str, float | None, int], S]
"""From label, rate (None: that of the size) and seed to a point."""


def tuning_points(make: Make[S], grids: Mapping[str, Sequence[float]]) -> list[S]:
    """List the bigram table, then every label at its rates, the likeliest of all labels first.

    Args:
        make: of a point.
        grids: label → rates, the likeliest first.

    Returns:
        The points.
    """
    places = [[(label, rate) for rate in rates] for label, rates in grids.items()]
    ordered = [one for each in itertools.zip_longest(*places) for one in each if one]
    tuned = [make(label, rate, TUNING_SEED) for label, rate in ordered]
    return [make(BIGRAMS, None, TUNING_SEED), *tuned]


def run_points(make: Make[S], best: Mapping[str, float], seeds: int) -> list[S]:
    """Every label at its best rate, seed by seed; each seed begins with the bigram table.

    Args:
        make: of a point.
        best: label → rate.
        seeds: how many.

    Returns:
        The points.
    """
    rates: dict[str, float | None] = {BIGRAMS: None, **best}
    return [make(label, rate, seed) for seed in run_seeds(seeds) for label, rate in rates.items()]


def run_seeds(count: int) -> range:
    """Seeds on which nothing was tuned."""
    return range(TUNING_SEED + 1, TUNING_SEED + 1 + count)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Runs that count, beside the tuning that they rest on."""

    tuning: Runs
    """Every label at its rates."""
    runs: Runs
    """Those that count."""
    rates: Mapping[str, float]
    """What was run → its learning rate."""

    @classmethod
    def of(cls, rows: Rows, tuning: str = TUNING, runs: str = COUNTED, **more: object) -> Self:
        """What is measured of two phases.

        Args:
            rows: of a study.
            tuning: name of one phase.
            runs: name of the other.
            **more: further fields.

        Returns:
            Both, as far as they are measured.
        """
        by_phase = {name: each for (name,), each in grouped(rows, "phase").items()}
        own = by_phase.get(runs, ())
        rates = {row["variant"]: row["learning_rate"] for row in own}
        return cls(tuning=Runs(by_phase.get(tuning, ())), runs=Runs(own), rates=rates, **more)

    def kinds(self, label: str) -> list[str]:
        """Name what was run as the tuning does; of several kinds the best counts."""
        return [label]

    def label_of(self, kind: str) -> str:
        """What was run, of a name in the tuning."""
        return kind

    def tuned_as(self, label: str) -> str:
        """The best of its kinds, as far as they are measured."""
        losses = self.tuning.losses
        measured = [kind for kind in self.kinds(label) if kind in losses]
        return min(measured, key=lambda kind: fmean(losses[kind].values()), default=label)

    def best_rate(self, label: str) -> float:
        """The best rate of what was run, from the best of its kinds in the tuning."""
        return self.tuning.rates[self.tuned_as(label)].best

    def must_be_inside(self, kind: str) -> bool:
        """Tell whether a best rate must lie inside its grid: not where it is `FAR` above another."""
        losses, best = self.tuning.losses, self.tuned_as(self.label_of(kind))
        if kind == best or not {kind, best} <= losses.keys():
            return True
        return fmean(losses[kind].values()) <= fmean(losses[best].values()) + FAR

    def judged(self, check: Check, *labels: str) -> Check:
        """Leave a check undecided where a best rate is at an end or the runs are not at it.

        Args:
            check: a fact about the runs.
            *labels: that it is about.

        Returns:
            The check, or one that holds neither way.
        """
        reasons = self.hindrances(*labels)
        if not reasons:
            return check
        return check.void(f"void, since {', '.join(reasons)}")

    def hindrances(self, *labels: str) -> list[str]:
        """Why the runs of some labels do not count; nothing where they do."""
        rates = self.tuning.rates
        kinds = [
            (label, kind)
            for label in labels
            for kind in self.kinds(label)
            if self.must_be_inside(kind)
        ]
        open_ended = [kind for _, kind in kinds if kind not in rates or not rates[kind].settled]
        best = {label: self.best_rate(label) for label, kind in kinds if kind in rates}
        elsewhere = [
            f"the runs of {label} are not at its best rate, {best[label]:g}"
            for label in best
            if self.tuned_as(label) not in open_ended
            and label in self.rates
            and self.rates[label] != best[label]
        ]
        if len(open_ended) < 3:
            ends = [f"the best rate of {one} is not inside its grid" for one in open_ended]
        else:
            ends = [f"{len(open_ended)} of {len(kinds)} best rates are not inside their grids"]
        return [*ends, *elsewhere]

    @property
    def _counting(self) -> dict[str, dict[float, dict[Scalar, float]]]:
        """The grids whose best rate must lie inside."""
        grids = self.tuning.grids.items()
        return {kind: grid for kind, grid in grids if self.must_be_inside(kind)}

    @property
    def enough(self) -> bool:
        """Whether the tuning has three rates of everything that counts."""
        return bool(self._counting) and min(map(len, self._counting.values())) >= 3

    def rate_checks(self) -> list[Check]:
        """Whether every best rate lies inside its grid, and whether the runs are there."""
        grids, enough = self._counting, self.enough
        rates = {label: self.tuning.rates[label] for label in grids}
        at_end = [f"{label} ({one.best:g})" for label, one in rates.items() if not one.settled]
        judged = {
            label: self.best_rate(label)
            for label in self.rates
            if self.tuned_as(label) in rates and rates[self.tuned_as(label)].settled
        }
        off = [
            f"{label} (best {best:g}, runs at {self.rates[label]:g})"
            for label, best in judged.items()
            if best != self.rates[label]
        ]
        inside, there = (
            "each best rate of the tuning lies inside its grid",
            "the runs of each block are at its best rate",
        )
        none = "none at an end (rule of this study)"
        return [
            rule_check(inside, at_end, len(grids), enough, expected=none, where="at an end"),
            rule_check(there, off, len(judged), bool(judged)),
        ]

    def tuning_table(self) -> list[dict[str, object]]:
        """Every rate of every label, its loss, and what came of it."""
        return [
            {
                "variant": label,
                "learning_rate": rate,
                "final_loss": loss,
                "best": rate == self.tuning.rates[label].best,
                "inside": self.tuning.rates[label].settled,
            }
            for label, grid in self.tuning.grids.items()
            for rate, seeds in sorted(grid.items())
            for loss in seeds.values()
        ]


def rule_check(
    fact: str,
    off: Sequence[str],
    count: int,
    enough: bool,
    expected: str = "all (rule of this study)",
    where: str = "elsewhere",
) -> Check:
    """Judge that all runs keep a rule of the study; undecided where too little is measured."""
    said = f"{where}: {'; '.join(off)}" if off else f"so for all {count}"
    ours, holds = (said, not off) if enough else ("too little measured", None)
    return Check(fact=fact, expected=expected, ours=ours, holds=holds)
