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
    found = []
    for panel in figure.plots:
        ours = {each.name: each for each in panel.series if not each.published}
        for each in panel.series:
            if each.published and each.name in ours:
                found.append(_difference(panel.title, ours[each.name], each))
    return [difference for difference in found if difference is not None]


def _difference(title: str, ours: Series, published: Series) -> Difference | None:
    pairs = [
        (own, other)
        for own in _values(ours)
        for other in _values(published)
        if math.isclose(own[0], other[0], rel_tol=SAME, abs_tol=1e-9) and other[1]
    ]
    if not pairs:
        return None
    relative = [abs(own[1] - other[1]) / abs(other[1]) for own, other in pairs]
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
