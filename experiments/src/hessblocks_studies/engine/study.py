"""Study: points to measure, and a summary of their rows."""

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
"""Measurements from a store, as mappings from columns to values; absent values are left out."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Comparison of a published or expected fact with our measurement."""

    fact: str
    """The fact, as a sentence."""
    expected: str
    """Expected number or direction."""
    ours: str
    """Our value, with its error."""
    holds: bool | None
    """Whether our value agrees; None if the measurements do not decide."""
    p_value: float | None = None
    """Two-sided p-value of the hypothesis that the true value is at the limit; None if nothing is
    tested, or the fact is a control or void."""

    def as_control(self) -> Self:
        """Mark the check as a control, without a p-value: verdicts depend on it."""
        return replace(self, p_value=None)

    def void(self, why: str) -> Self:
        """Mark the check as void, and append the reason once to its numbers."""
        ours = self.ours if self.ours.endswith(why) else f"{self.ours}; {why}"
        return replace(self, ours=ours, holds=None, p_value=None)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of the rows of a study."""

    figure: Figure
    """Figure of the study."""
    checks: Sequence[Check]
    """Checks of facts."""
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Tables of numbers by name, such as fits."""

    def to_dict(self) -> dict[str, Any]:
        """Convert checks and tables to plain data; the figure has a separate file."""
        return {
            "checks": [asdict(check) for check in self.checks],
            "tables": {name: [_known(row) for row in rows] for name, rows in self.tables.items()},
        }


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace numbers that are not finite by None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


@dataclass(frozen=True, kw_only=True)
class Study(Generic[S]):
    """Study of one figure, table or question."""

    name: str
    """Name on the command line."""
    title: str
    """Short title."""
    source: str
    """Source: paper and figure."""
    published: str
    """Published result as one sentence."""
    settings: Callable[[Scale, int | None], Sequence[S]]
    """Function from scale and number of seeds (None: the scale's default) to the settings of the
    points, which are frozen dataclasses."""
    measure: Measure[S]
    """Function from a point's settings to its rows."""
    summarise: Callable[[Rows], Summary]
    """Function from all rows to their summary; also works on partial results."""
    columns: tuple[str, ...]
    """Columns of the study's results.csv."""
    revision: int = 1
    """Revision of the study; increased when equal settings give other results."""
    gpus: float = 0
    """Accelerators per point on a cluster, at paper scale."""
    more: Callable[[Rows, Sequence[S]], Sequence[S]] | None = None
    """Function from all rows and their points' settings to the settings of further points; empty if
    none follow. None for a study with fixed points."""
    costs: Mapping[Scale, str] = field(default_factory=dict)
    """Scale → expected cost of all points, in words."""

    def points(self, scale: str, seeds: int | None = None) -> list[Point]:
        """List the points of a scale.

        Args:
            scale: smoke, laptop or paper.
            seeds: number of seeds; None means the scale's default.

        Returns:
            The points without duplicates, in the order of measurement.

        Raises:
            ArgumentError: unknown scale.
        """
        check_name("scale", scale, SCALES)
        gpus = self.gpus if scale == "paper" else 0
        return self.made(self.settings(cast(Scale, scale), seeds), gpus)

    def made(self, settings: Sequence[S], gpus: float) -> list[Point]:
        """Make the points of settings, with `gpus` accelerators each."""
        return [
            Point(study=self.name, settings=point_settings, revision=self.revision, gpus=gpus)
            for point_settings in settings
        ]
