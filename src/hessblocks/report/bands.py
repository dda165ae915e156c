"""The band around a curve, on a linear or a logarithmic axis."""

from __future__ import annotations

from hessblocks.report.drawings import Series
from hessblocks.report.scale import LogScale


def band(series: Series, scale: LogScale | None) -> tuple[list[float], list[float]]:
    """Lower and upper edge of the band around a curve, within the axis."""
    if scale is None:
        reach = [(point.error, point.error) for point in series.points]
        middle = [point.y for point in series.points]
    else:
        reach = [scale.reach(point.y, point.error) for point in series.points]
        middle = [scale.place(point.y) for point in series.points]
    below = [value - own for value, (own, _) in zip(middle, reach, strict=True)]
    return below, [value + own for value, (_, own) in zip(middle, reach, strict=True)]
