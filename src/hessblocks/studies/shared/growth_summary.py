"""What a growth study amounts to: slopes against theory, and the picture on double logarithmic axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from hessblocks.figures import Figure, Panel, Scaling, Series, mean_and_error
from hessblocks.storage import Row
from hessblocks.studies.engine import Check, Summary, number
from hessblocks.studies.shared.fits import Growth, fit_growth

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
        small = [row for row in members if number(row, "sigma") <= largest * (1 + 1e-9)]
        growth = fit_growth(
            [number(row, "sigma") for row in small],
            [number(row, "value") for row in small],
            [number(row, "standard_error") for row in small],
        )
        if growth is not None:
            found[curve] = growth
    return found


def by_curve(rows: Iterable[Row]) -> dict[Curve, list[Row]]:
    """The rows of each curve."""
    found: dict[Curve, list[Row]] = {}
    for row in rows:
        curve = (
            int(number(row, "layers")),
            int(number(row, "layer")),
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
        curves_panel(members, _place(layers, layer), published, x_scale=x_scale)
        for (layers, layer), members in _by_layer(rows).items()
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
        at.setdefault(number(row, "sigma"), []).append(number(row, "value"))
    return [(sigma, *mean_and_error(at[sigma])) for sigma in sorted(at)]


def curves_panel(
    rows: Sequence[Row],
    title: str,
    published: Sequence[Row] = (),
    x_scale: Scaling = "log",
) -> Panel:
    """The curves of one layer; those that are 0 everywhere are left out."""
    theirs = by_curve(published)
    series = []
    for curve, members in by_curve(rows).items():
        name = f"{curve[2]}, {curve[3]}"
        if any(row["value"] for row in members):
            series.append(curve_series(name, averaged(members)))
        if any(row["value"] for row in theirs.get(curve, [])):
            series.append(_published(name, theirs[curve]))
    return growth_panel(title, series, x_scale)


def growth_panel(title: str, series: Sequence[Series], x_scale: Scaling = "log") -> Panel:
    """Norms against σ."""
    return Panel(
        title=title,
        x_label="standard deviation σ of the embeddings",
        y_label="Frobenius norm of the block",
        x_scale=x_scale,
        y_scale="log",
        series=tuple(series),
    )


def _by_layer(rows: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
    found: dict[tuple[int, int], list[Row]] = {}
    for (layers, layer, *_), members in by_curve(rows).items():
        found.setdefault((layers, layer), []).extend(members)
    return found


def _place(layers: int, layer: int) -> str:
    return "one layer" if layers == 1 else f"layer {layer + 1} of {layers}"


def curve_series(name: str, points: Sequence[tuple[float, float, float]]) -> Series:
    """A curve of (σ, mean, standard error); values of 0 have no place on a logarithmic axis."""
    kept = [point for point in points if point[1] > 0]
    x, y, error = zip(*kept, strict=True)
    return Series(name=name, x=x, y=y, error=error)


def _published(name: str, rows: Sequence[Row]) -> Series:
    kept = [row for row in rows if number(row, "value") > 0]
    return Series(
        name=name,
        x=tuple(number(row, "sigma") for row in kept),
        y=tuple(number(row, "value") for row in kept),
        error=tuple(number(row, "standard_error") for row in kept),
        published=True,
        line=False,
    )


def _slope_check(curve: Curve, growth: Growth, wanted: Expected) -> Check:
    layers, layer, group, part = curve
    flag = f"; no power law: {growth.flag}" if growth.flag else ""
    distance = abs(growth.slope - wanted.slope)
    open_question = distance - wanted.tolerance <= (growth.high - growth.low) / 2
    return Check(
        fact=f"slope of the {part} {group} block, {_place(layers, layer)}, σ ≤ {growth.largest:.3g}",
        expected=f"{wanted.slope:g} ± {wanted.tolerance:g} ({wanted.source})",
        ours=f"{growth.slope:.3f} [{growth.low:.3f}, {growth.high:.3f}]{flag}",
        holds=True if distance <= wanted.tolerance else None if open_question else False,
    )
