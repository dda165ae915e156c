"""Make rows, and gather them over seeds: means, curves, panels, summaries."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hessblocks.figures import Figure, Heatmap, Panel, Series
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks_studies.engine import Check, Rows, Summary
from hessblocks_studies.shared.pooled_errors import LEVEL

R = TypeVar("R", bound=Mapping[str, Any])
Place = tuple[float, float, float]
"""Abscissa, ordinate and its standard error."""


def measured(quantity: str, value: Scalar, method: str = "measured", /, **place: Scalar) -> Row:
    """A row of one quantity.

    Args:
        quantity: its name.
        value: of it; None where there is none.
        method: measured, counted, exact or estimate.
        **place: what it belongs to, and its standard error where it has one.

    Returns:
        The row.
    """
    return {**place, "quantity": quantity, "value": value, "method": method}


def validation_loss(line: Mapping[str, Any]) -> tuple[int, float | None] | None:
    """(step, validation loss) of a line; the loss is None where training diverged.

    Returns:
        None for a training loss.
    """
    if line["split"] == "train" and "diverged" not in line:
        return None
    loss = line["loss"]
    return line["step"], loss if loss is not None and math.isfinite(loss) else None


def grouped(rows: Iterable[Mapping[str, Any]], *columns: str) -> dict[tuple[Any, ...], Rows]:
    """The rows that agree in some columns, in the order of the rows."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in columns), []).append(row)
    return {**found}


def gathered(
    rows: Iterable[Mapping[str, Any]], *columns: str
) -> dict[tuple[Any, ...], list[float]]:
    """The values of rows that agree in some columns, both in the order of the rows."""
    groups = grouped(rows, *columns).items()
    return {key: [float(row["value"]) for row in members] for key, members in groups}


def nested(
    rows: Iterable[Mapping[str, Any]], *keys: str | tuple[str, ...], value: str = "value"
) -> dict[Any, Any]:
    """The values of rows, a mapping in a mapping for each key.

    Args:
        rows: where they stand.
        keys: columns, the outermost first; of several columns together, a tuple.
        value: the column of the values.

    Returns:
        {first key: {second key: … value}}, in the order of the rows; of equal places the last
        counts.
    """
    found: dict[Any, Any] = {}
    for row in rows:
        inner = found
        *outer, last = (row[k] if isinstance(k, str) else tuple(row[n] for n in k) for k in keys)
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = row[value]
    return found


def of_quantity(rows: Iterable[R], *quantities: str) -> list[R]:
    """The rows of some quantities."""
    return [row for row in rows if row["quantity"] in quantities]


def mean_table(
    values: Mapping[tuple[Any, ...], Sequence[float]], *columns: str, value: str = "value"
) -> list[dict[str, Any]]:
    """A row with mean and standard error for each of `gathered` values.

    Args:
        values: by what they belong to.
        columns: names of what they belong to.
        value: name of the mean.

    Returns:
        The rows of the table.
    """
    table = []
    for key, each in values.items():
        mean, error = mean_and_error(each)
        names = dict(zip(columns, key, strict=True))
        table.append({**names, value: mean, "standard_error": error})
    return table


def mean_places(values: Mapping[float, Sequence[float]]) -> list[Place]:
    """(x, mean, standard error) of the values at each x, in their order."""
    return [(x, *mean_and_error(each)) for x, each in values.items()]


def curve(name: str, places: Sequence[Place], **style: Any) -> Series:
    """A series through places.

    Args:
        name: in the legend.
        places: where it passes; none for a series that is only named.
        **style: line and published of the `Series`.

    Returns:
        The series, with the errors as bars.
    """
    x, y, error = (tuple(place[part] for place in places) for part in range(3))
    return Series(name=name, x=x, y=y, error=error, **style)


def panel(
    title: str,
    x_label: str,
    y_label: str,
    curves: Mapping[str, Sequence[Place]],
    *,
    log: str = "",
    line: bool = True,
    empty: bool = False,
) -> Panel:
    """A panel of curves.

    Args:
        title: of the panel.
        x_label: of the abscissa.
        y_label: of the ordinate.
        curves: name in the legend → places.
        log: which axes are logarithmic, of "xy".
        line: whether points are joined.
        empty: whether curves that have no place stay, by their names.

    Returns:
        The panel, its curves in their order.
    """
    return Panel(
        title=title,
        x_label=x_label,
        y_label=y_label,
        x_scale="log" if "x" in log else "linear",
        y_scale="log" if "y" in log else "linear",
        series=tuple(
            curve(name, each, line=line) for name, each in curves.items() if each or empty
        ),
    )


def summary(
    title: str,
    caption: str,
    panels: Iterable[Panel | Heatmap],
    checks: Sequence[Check],
    **tables: Sequence[Mapping[str, Any]],
) -> Summary:
    """What a study amounts to.

    Args:
        title: of the figure.
        caption: of the figure.
        panels: of the figure.
        checks: facts.
        **tables: numbers worth keeping, by name.

    Returns:
        The summary.
    """
    figure = Figure(title=title, caption=caption, panels=tuple(panels))
    return Summary(figure=figure, checks=allowed_for(checks), tables=tables)


def allowed_for(checks: Sequence[Check]) -> list[Check]:
    """Leave verdicts undecided that their number could bring by chance (Holm 1979).

    Of m facts that are tested, that of the k-th smallest p-value counts where it and all smaller
    ones are at most 0.05 / (m − k + 1): a wrong one is then among all of them in 5 % of cases at
    most. Facts that are void are not tested.

    Args:
        checks: of one study.

    Returns:
        The same, in their order.
    """
    tested = sorted(
        (check.p_value, place) for place, check in enumerate(checks) if check.p_value is not None
    )
    found = list(checks)
    over = False
    for behind, (p_value, place) in enumerate(tested):
        over = over or p_value > LEVEL / (len(tested) - behind)
        if over and found[place].holds is not None:
            ours = f"{found[place].ours}; decided alone, not among {len(tested)} (Holm)"
            found[place] = replace(found[place], ours=ours, holds=None)
    return found
