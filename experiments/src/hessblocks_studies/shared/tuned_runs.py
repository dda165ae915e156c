"""Tune learning rates, run blocks at the best rates, and void verdicts without a full tuning."""

from collections.abc import Sequence
from dataclasses import dataclass

from hessblocks.storage import Row
from hessblocks_studies.engine import Check
from hessblocks_studies.shared.trained_points import (
    AT_RATE,
    TRAINED_COLUMNS,
    TrainedSettings,
)

TUNING = "tuning"
"""Name of the phase that tunes rates, or the end of its name."""
TUNING_SEED = 0
"""Seed of the tuning; judged runs have the seeds from 1 on."""
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
        columns: Row = {"phase": self.phase, "learning_rate": self.size.learning_rate}
        return [{**row, **columns} for row in rows]


def run_seeds(count: int) -> range:
    """Return seeds that the tuning did not use."""
    return range(TUNING_SEED + 1, TUNING_SEED + 1 + count)


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
