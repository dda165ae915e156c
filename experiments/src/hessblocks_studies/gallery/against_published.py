"""Compare our curves with the published ones, point by point."""

import math
import statistics
from dataclasses import dataclass

from hessblocks.figures import Figure, Series

NEAR = 3.0
"""Joint standard errors up to which two values count as equal."""
SAME = 1e-3
"""Relative difference up to which two values of x count as equal."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference between one of our curves and the published curve with its name."""

    name: str
    """Name of the curve, with its panel."""
    points: int
    """Number of common x values."""
    typical: float
    """Median of |ours − published| / |published|."""
    largest: float
    """Maximum of |ours − published| / |published|."""
    near: int | None
    """Number of points within three joint standard errors; None if our curve has no error bars."""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Format the difference as a row of the table."""
        near = "no error bars" if self.near is None else f"{self.near} of {self.points}"
        return self.name, f"{self.typical:.1%}", f"{self.largest:.1%}", near


def differences(figure: Figure) -> list[Difference]:
    """List the differences of a figure, one for each curve with a published counterpart."""
    pairs = []
    for panel in figure.plots:
        ours = {series.name: series for series in panel.series if not series.published}
        for series in panel.series:
            if series.published and series.name in ours:
                pairs.append(_difference(panel.title, ours[series.name], series))
    return [difference for difference in pairs if difference is not None]


def _difference(title: str, ours: Series, published: Series) -> Difference | None:
    pairs = [
        (mine, theirs)
        for mine in _values(ours)
        for theirs in _values(published)
        if math.isclose(mine[0], theirs[0], rel_tol=SAME, abs_tol=1e-9) and theirs[1]
    ]
    if not pairs:
        return None
    relative = [abs(mine[1] - theirs[1]) / abs(theirs[1]) for mine, theirs in pairs]
    near = [abs(a[1] - b[1]) <= NEAR * math.hypot(a[2], b[2]) for a, b in pairs]
    return Difference(
        name=f"{ours.name} ({title})" if title else ours.name,
        points=len(pairs),
        typical=statistics.median(relative),
        largest=max(relative),
        near=sum(near) if ours.error else None,
    )


def _values(series: Series) -> list[tuple[float, float, float]]:
    errors = series.error or [0.0] * len(series.x)
    return list(zip(series.x, series.y, errors, strict=True))
