"""What a growth study amounts to: slopes against theory, and the picture on double logarithmic axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from hessblocks.studies.figure import Figure, Panel, Scaling, Series, mean_and_error
from hessblocks.studies.fits import Growth, fit_growth
from hessblocks.studies.point import Row
from hessblocks.studies.study import Check, Summary

Curve = tuple[int, int, str, str]
"""layers, layer, group, part."""
SMALL = 0.1
"""Largest σ at which a power law is expected."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A slope that theory gives."""

    group: str
    """Group of the block."""
    part: str
    """outer, functional or full."""
    slope: float
    """Exponent of σ."""
    tolerance: float = 0.1
    """Distance from it that still agrees."""
    layers: int | None = None
    """Of models with so many layers; None means any."""
    source: str = "theory"
    """Where the number is from."""


def slopes(rows: Sequence[Row], largest: float) -> dict[Curve, Growth]:
    """Power laws of all curves for σ up to `largest`; curves that are 0 or too short are left out."""
    found = {}
    for curve, members in by_curve(rows).items():
        small = [row for row in members if _number(row, "sigma") <= largest * (1 + 1e-9)]
        growth = fit_growth(
            [_number(row, "sigma") for row in small],
            [_number(row, "value") for row in small],
            [_number(row, "standard_error") for row in small],
        )
        if growth is not None:
            found[curve] = growth
    return found


def by_curve(rows: Iterable[Row]) -> dict[Curve, list[Row]]:
    """The rows of each curve."""
    found: dict[Curve, list[Row]] = {}
    for row in rows:
        curve = (
            int(_number(row, "layers")),
            int(_number(row, "layer")),
            str(row["group"]),
            str(row["part"]),
        )
        found.setdefault(curve, []).append(row)
    return found


def slope_checks(fits: Mapping[Curve, Growth], expected: Sequence[Expected]) -> list[Check]:
    """Each fitted slope next to the expected one."""
    return [
        _slope_check(curve, growth, wanted)
        for wanted in expected
        for curve, growth in fits.items()
        if curve[2:] == (wanted.group, wanted.part) and wanted.layers in (None, curve[0])
    ]


def fit_table(fits: Mapping[Curve, Growth]) -> list[dict[str, object]]:
    """The fits as rows of plain data."""
    names = ("layers", "layer", "group", "part")
    return [
        {**dict(zip(names, curve, strict=True)), **asdict(growth)} for curve, growth in fits.items()
    ]


def growth_summary(
    rows: Sequence[Row],
    *,
    title: str,
    caption: str,
    expected: Sequence[Expected],
    largest: float = SMALL,
    published: Sequence[Row] = (),
    x_scale: Scaling = "log",
) -> Summary:
    """Fits, checks and figure of a growth study.

    Args:
        rows: measurements, all or those there are.
        title: of the figure.
        caption: beyond what is said of seeds and errors.
        expected: slopes from theory.
        largest: σ up to which slopes are fitted.
        published: the paper's means, with the columns of rows.
        x_scale: of the σ axis, log or linear.
    """
    fits = slopes(rows, largest)
    seeds = len({row["seed"] for row in rows})
    panels = tuple(
        _panel(curves, published, x_scale) for curves in _by_layer(by_curve(rows)).values()
    )
    bars = f"Mean over {seeds} seeds; bars are its standard errors. {caption}"
    return Summary(
        figure=Figure(title=title, caption=bars, panels=panels),
        checks=tuple(slope_checks(fits, expected)),
        tables={"slopes": fit_table(fits)},
    )


def averaged(rows: Sequence[Row]) -> list[tuple[float, float, float]]:
    """(σ, mean, standard error of the mean) of one curve, smallest σ first."""
    at: dict[float, list[float]] = {}
    for row in rows:
        at.setdefault(_number(row, "sigma"), []).append(_number(row, "value"))
    return [(sigma, *mean_and_error(at[sigma])) for sigma in sorted(at)]


def _by_layer(curves: Mapping[Curve, list[Row]]) -> dict[tuple[int, int], dict[Curve, list[Row]]]:
    found: dict[tuple[int, int], dict[Curve, list[Row]]] = {}
    for curve, rows in curves.items():
        found.setdefault(curve[:2], {})[curve] = rows
    return found


def _panel(curves: Mapping[Curve, list[Row]], published: Sequence[Row], x_scale: Scaling) -> Panel:
    layers, layer, *_ = next(iter(curves))
    theirs = by_curve(published)
    series = []
    for curve, rows in curves.items():
        if any(row["value"] for row in rows):
            series.append(_series(f"{curve[2]}, {curve[3]}", averaged(rows)))
        if curve in theirs:
            series.append(_published(f"{curve[2]}, {curve[3]}", theirs[curve]))
    where = "one layer" if layers == 1 else f"layer {layer + 1} of {layers}"
    return Panel(
        title=where,
        x_label="standard deviation σ of the embeddings",
        y_label="Frobenius norm of the block",
        x_scale=x_scale,
        y_scale="log",
        series=tuple(series),
    )


def _series(name: str, points: Sequence[tuple[float, float, float]]) -> Series:
    kept = [point for point in points if point[1] > 0]
    x, y, error = zip(*kept, strict=True)
    return Series(name=name, x=x, y=y, error=error)


def _published(name: str, rows: Sequence[Row]) -> Series:
    kept = [row for row in rows if _number(row, "value") > 0]
    return Series(
        name=name,
        x=tuple(_number(row, "sigma") for row in kept),
        y=tuple(_number(row, "value") for row in kept),
        error=tuple(_number(row, "standard_error") for row in kept),
        published=True,
        line=False,
    )


def _slope_check(curve: Curve, growth: Growth, wanted: Expected) -> Check:
    layers, layer, group, part = curve
    where = "one layer" if layers == 1 else f"layer {layer + 1} of {layers}"
    flag = f"; no power law: {growth.flag}" if growth.flag else ""
    distance = abs(growth.slope - wanted.slope)
    open_question = distance - wanted.tolerance <= (growth.high - growth.low) / 2
    return Check(
        fact=f"slope of the {part} {group} block, {where}, σ ≤ {growth.largest:.3g}",
        expected=f"{wanted.slope:g} ± {wanted.tolerance:g} ({wanted.source})",
        ours=f"{growth.slope:.3f} [{growth.low:.3f}, {growth.high:.3f}]{flag}",
        holds=True if distance <= wanted.tolerance else None if open_question else False,
    )


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return float(value)
