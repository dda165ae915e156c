"""What a study is: points to measure, and what their rows amount to."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Literal, Self, cast, get_args

from hessblocks.errors import check_name
from hessblocks.figures import Figure
from hessblocks_studies.engine.point import Measure, Point, S

Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Rows = Sequence[Mapping[str, Any]]
"""Measurements as they come back from a store: by column, what a row lacks is left out."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A published or expected fact next to ours."""

    fact: str
    """The fact, in a sentence."""
    expected: str
    """Its number or direction."""
    ours: str
    """Measured value, with its error."""
    holds: bool | None
    """Whether it agrees; None where too little was measured to say."""
    p_value: float | None = None
    """Two-sided chance of numbers that decide as much, if the truth were at the limit; None where
    nothing is tested, the fact is a control, or does not count."""

    def as_control(self) -> Self:
        """The fact as one that verdicts rest on, and that is none itself."""
        return replace(self, p_value=None)

    def void(self, why: str) -> Self:
        """The fact where it does not count, with the reason behind its numbers, said once."""
        ours = self.ours if self.ours.endswith(why) else f"{self.ours}; {why}"
        return replace(self, ours=ours, holds=None, p_value=None)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of the rows of a study."""

    figure: Figure
    """The picture."""
    checks: Sequence[Check]
    """Facts."""
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Numbers worth keeping, such as fits, by name."""

    def to_dict(self) -> dict[str, Any]:
        """Checks and tables as plain data; the figure has its own file."""
        return {
            "checks": [asdict(check) for check in self.checks],
            "tables": {name: [_known(row) for row in rows] for name, rows in self.tables.items()},
        }


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    """Write None in a row of a table where a number is not finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


@dataclass(frozen=True, kw_only=True)
class Study(Generic[S]):
    """One figure, table or question."""

    name: str
    """As it is asked for."""
    title: str
    """Title in a few words."""
    source: str
    """Paper and figure."""
    published: str
    """Published result, in one sentence."""
    settings: Callable[[Scale, int | None], Sequence[S]]
    """From a scale and a number of seeds (None: the scale's own) to the points' settings, frozen
    dataclasses."""
    measure: Measure[S]
    """From a point's settings to its rows."""
    summarise: Callable[[Rows], Summary]
    """From all rows to what they amount to; works on partial results too."""
    columns: tuple[str, ...]
    """Columns of the study's results.csv."""
    revision: int = 1
    """Raised when equal settings give other numbers than before."""
    gpus: float = 0
    """Accelerators that a point of the paper's scale takes on a cluster."""
    more: Callable[[Rows, Sequence[S]], Sequence[S]] | None = None
    """From all rows and the settings of their points to those of one more seed; to none where the
    numbers decide. None for a study whose seeds are fixed."""

    def points(self, scale: str, seeds: int | None = None) -> list[Point]:
        """The points of a scale.

        Args:
            scale: smoke, laptop or paper.
            seeds: how many; None means the scale's own number.

        Returns:
            The points, each once, in the order in which they are measured.

        Raises:
            ArgumentError: an unknown scale.
        """
        check_name("scale", scale, SCALES)
        gpus = self.gpus if scale == "paper" else 0
        return self.made(self.settings(cast(Scale, scale), seeds), gpus)

    def made(self, settings: Sequence[S], gpus: float) -> list[Point]:
        """The points of some settings, with so many accelerators each."""
        return [
            Point(study=self.name, settings=one, revision=self.revision, gpus=gpus)
            for one in settings
        ]
