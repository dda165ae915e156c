"""Tune learning rates, run blocks at the best rates, and void verdicts without a full tuning."""

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
"""Name of the phase that tunes rates, or the end of its name."""
COUNTED = "runs"
"""Name of the phase with the judged runs, if there is only one."""
TUNING_SEED = 0
"""Seed of the tuning; judged runs have the seeds from 1 on."""
FAR = 0.1
"""A kind whose loss is this many nats above that of the best kind needs no longer grid."""
TUNED_COLUMNS = (*TRAINED_COLUMNS, "phase", "learning_rate")


@dataclass(frozen=True, kw_only=True)
class TunedSettings(TrainedSettings):
    """Settings of a point of a study with tuned rates: one model or one reference."""

    phase: str
    """Phase of the study: tuning or judged runs."""
    label: str
    """Label in tuning and verdicts: a block with its edits, or a reference."""

    @property
    def name(self) -> str:
        """The label; during tuning with the rate."""
        return f"{self.label}{AT_RATE}{self.size.learning_rate:g}" if self.tuned else self.label

    def placed(self, rows: Sequence[Row]) -> list[Row]:
        """Add the phase and rate of this point to its rows."""
        own: Row = {"phase": self.phase, "learning_rate": self.size.learning_rate}
        return [{**row, **own} for row in rows]


S = TypeVar("S")
Make = Callable[[str, float | None, int], S]
"""Function from label, rate (None: the rate of the size) and seed to a point."""


def tuning_points(make: Make[S], grids: Mapping[str, Sequence[float]]) -> list[S]:
    """List the bigram table, then each label at its rates; the likeliest rates of all come first.

    Args:
        make: function that makes a point.
        grids: label → rates, the likeliest first.

    Returns:
        The points.
    """
    places = [[(label, rate) for rate in rates] for label, rates in grids.items()]
    ordered = [one for each in itertools.zip_longest(*places) for one in each if one]
    tuned = [make(label, rate, TUNING_SEED) for label, rate in ordered]
    return [make(BIGRAMS, None, TUNING_SEED), *tuned]


def run_points(make: Make[S], best: Mapping[str, float], seeds: int) -> list[S]:
    """List each label at its best rate, seed by seed; each seed begins with the bigram table.

    Args:
        make: function that makes a point.
        best: label → rate.
        seeds: number of seeds.

    Returns:
        The points.
    """
    rates: dict[str, float | None] = {BIGRAMS: None, **best}
    return [make(label, rate, seed) for seed in run_seeds(seeds) for label, rate in rates.items()]


def run_seeds(count: int) -> range:
    """Return seeds that the tuning did not use."""
    return range(TUNING_SEED + 1, TUNING_SEED + 1 + count)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Judged runs, and the tuning that chose their rates."""

    tuning: Runs
    """Tuning runs: each label at its rates."""
    runs: Runs
    """Judged runs."""
    rates: Mapping[str, float]
    """Judged label → its learning rate."""

    @classmethod
    def of(cls, rows: Rows, tuning: str = TUNING, runs: str = COUNTED, **more: object) -> Self:
        """Collect the measurements of the tuning and the judged runs.

        Args:
            rows: rows of a study.
            tuning: name of the tuning phase.
            runs: name of the phase with the judged runs.
            **more: further fields of the class.

        Returns:
            Both phases, as far as they are measured.
        """
        by_phase = {name: each for (name,), each in grouped(rows, "phase").items()}
        own = by_phase.get(runs, ())
        rates = {row["variant"]: row["learning_rate"] for row in own}
        return cls(tuning=Runs(by_phase.get(tuning, ())), runs=Runs(own), rates=rates, **more)

    def kinds(self, label: str) -> list[str]:
        """List the names of a label in the tuning; the best of these kinds counts."""
        return [label]

    def label_of(self, kind: str) -> str:
        """Return the label whose runs belong to a name in the tuning."""
        return kind

    def tuned_as(self, label: str) -> str:
        """Return the label's best kind among those that are measured."""
        losses = self.tuning.losses
        measured = [kind for kind in self.kinds(label) if kind in losses]
        return min(measured, key=lambda kind: fmean(losses[kind].values()), default=label)

    def best_rate(self, label: str) -> float:
        """Return the best rate of a label, from its best kind in the tuning."""
        return self.tuning.rates[self.tuned_as(label)].best

    def must_be_inside(self, kind: str) -> bool:
        """Tell whether a kind's best rate must be inside its grid: no if `FAR` above the best."""
        losses, best = self.tuning.losses, self.tuned_as(self.label_of(kind))
        if kind == best or not {kind, best} <= losses.keys():
            return True
        return fmean(losses[kind].values()) <= fmean(losses[best].values()) + FAR

    def judged(self, check: Check, *labels: str) -> Check:
        """Leave a check undecided if a best rate is at an end of its grid or the runs use another.

        Args:
            check: check of a fact about the runs.
            *labels: labels of the fact.

        Returns:
            The check, or an undecided copy.
        """
        reasons = self.hindrances(*labels)
        if not reasons:
            return check
        return check.void(f"void, since {', '.join(reasons)}")

    def hindrances(self, *labels: str) -> list[str]:
        """List reasons why the runs of some labels do not count."""
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
        """Tuning grids whose best rate must be inside."""
        grids = self.tuning.grids.items()
        return {kind: grid for kind, grid in grids if self.must_be_inside(kind)}

    @property
    def enough(self) -> bool:
        """Whether there are grids that count and each has at least three rates."""
        return bool(self._counting) and min(map(len, self._counting.values())) >= 3

    def rate_checks(self) -> list[Check]:
        """Check that each best rate is inside its grid, and that the runs use the best rates."""
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
        """List each rate of each label with its loss, and whether it is the best."""
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
    """Judge whether all runs satisfy a rule of the study; undecided if `enough` is false."""
    said = f"{where}: {'; '.join(off)}" if off else f"so for all {count}"
    ours, holds = (said, not off) if enough else ("too little measured", None)
    return Check(fact=fact, expected=expected, ours=ours, holds=holds)
